"""These are the errors and the warning that a caller may want to catch.

FedSSAError
├── SettingsError     a recipe, an option or an argument is wrong
├── DataError         a data set is missing, damaged or does not fit the task
├── ModelError        a model cannot take part (no header, wrong input, ...)
├── RunDirError       a run directory is of other settings, in use, damaged, or cannot be written
├── ClientError       a client's own code failed
├── AnswerError       what a client sent cannot be used, or nothing came that can be
└── Diverged          NaN or infinity in training: a result, not a mistake

FedSSAWarning         what a user should know, and the run goes on

Messages are one line: which setting or file, what is wrong, what would be right.
"""

import math


class FedSSAError(Exception):
    """This is the base of all errors that are not bugs of this package."""

    def __init__(self, line: str = "") -> None:
        """Keeps the message to one line, though a user's own code may have said several in it."""
        super().__init__(" ".join(str(line).splitlines()))


class SettingsError(FedSSAError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""

    def __init__(self, line: str) -> None:
        """Leaves out the middle of a line that a setting has made endless."""
        super().__init__(line if len(line) <= 2000 else f"{line[:1000]} … {line[-500:]}")


class DataError(FedSSAError):
    """A data set is missing, damaged or does not fit the task."""


class ModelError(FedSSAError):
    """A model cannot take part in the federation."""


class RunDirError(FedSSAError):
    """A run directory cannot be used or written."""


class ClientError(FedSSAError):
    """A client's own code (model, data, method) raised an exception."""


class AnswerError(FedSSAError):
    """A client's answer is not what its method sends, or there are too few answers to go on."""

    def __init__(self, line: str) -> None:
        """Keeps the message to one line of moderate length, whatever names and numbers the sender has put into it."""
        short = line[:500]
        super().__init__(short if short.isprintable() else "".join(c if c.isprintable() else "?" for c in short))


class Diverged(FedSSAError):
    """A client's loss or weights are no longer finite, or those of what the server trains (client None)."""

    def __init__(
        self,
        client: int | None,
        t: int,
        header_norm: float | None = None,
        name: str | None = None,
        where: str = "",
    ) -> None:
        """`name` is what its owner calls the client, if that is not its number; settings are changed `where`."""
        if header_norm is not None and not math.isfinite(header_norm):  # which JSON cannot hold
            header_norm = None
        norm = "" if header_norm is None else f" (mean norm of its header's rows before: {header_norm:.3g})"
        who, rate = ("the server", "server.lr") if client is None else (f"client {name or client}", "local.lr")
        when = f"in round {t}" if t >= 0 else "before the first round"
        super().__init__(f"{who} diverged {when}: loss or weights are not finite{norm}; try a smaller {rate}{where}")
        self.client, self.t, self.header_norm = client, t, header_norm


class FedSSAWarning(UserWarning):
    """A warning tells what a user should know; the run goes on."""
