"""The statistics in plain words, at the foot of every report."""

from fedssa.report.comparison import TARGET_SHARE
from fedssa.report.statistics import LEVEL, NUM_RESAMPLES, RESAMPLE_SEEDS_FROM

HOW: tuple[tuple[str, str], ...] = (
    (
        "Accuracy",
        "Each client tests its own latest model on its own test data; the number is the unweighted mean over all "
        "clients after the last round, then over seeds. ± is the standard deviation over seeds.",
    ),
    (
        "Best by validation",
        "The test accuracy in the round whose mean validation accuracy was highest. It stands beside the last round, "
        "never in its place; the best round by test accuracy is not shown anywhere, because it is chosen by its luck.",
    ),
    (
        "Difference",
        "Every client is compared with itself under standalone, with the same seed: same data, same start, same "
        "rounds. The number is the mean of those differences over clients, then over seeds.",
    ),
    (
        "Interval",
        f"The middle {100 * LEVEL:.0f} % of {NUM_RESAMPLES:,} means of resamples: clients are drawn again within their "
        f"seed, and from {RESAMPLE_SEEDS_FROM} seeds on the seeds are drawn again too. With two seeds it speaks of "
        "clients, not of other seeds; with one there is none. Three seeds are few: take it as rough.",
    ),
    (
        "Verdict",
        "“Higher” and “lower” stand where chance is unlikely (5 %) even though several methods are compared at once "
        "(Holm’s correction). “No difference shown” means just that: not that there is none.",
    ),
    (
        "To the target",
        f"Until the first of three rounds in a row at or above {100 * TARGET_SHARE:.0f} % of standalone’s last "
        "accuracy with the same seed, or run.target. Numbers are floating-point values sent up and down; FLOPs are "
        "those of the clients’ training, forward and backward, without evaluation and server.",
    ),
)
