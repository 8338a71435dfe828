"""All that a server asks of a hello and of an answer stands here; whatever else a site sends ends in AnswerError."""

from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedssa.core.client import AnyAnswer, AnyMethod, ClientInfo
from fedssa.core.context import Context
from fedssa.core.task import Task
from fedssa.deploy.messages import Request, answer_in, check_norm, info_in
from fedssa.deploy.server.scores import check_kept_back, check_scores
from fedssa.errors import AnswerError
from fedssa.records import Scores
from fedssa.settings.metrics import metric_paths
from fedssa.sites.agreement import Deploy, Federation


@dataclass(frozen=True)
class Checks:
    """Checks hold what sites say to the task, the method and the limits that were agreed on."""

    method: AnyMethod
    task: Task
    deploy: Deploy
    metrics: tuple[str, ...] = ()  # names of the metrics agreed on

    @classmethod
    def of(cls, federation: Federation) -> "Checks":
        metrics = tuple(metric_paths(federation.settings.run.metrics))
        return cls(federation.settings.method, federation.task, federation.deploy, metrics)

    def hello(self, records: RecordDict) -> ClientInfo:
        info = info_in(records, self.task)
        self.method.check_info(info, self.task)
        if self.method.sends_counts and not info.num_train:
            raise AnswerError("no number of training samples, and the method's uploads have some")
        if info.start is not None:
            self._check_scores(info.start)
        return info

    def answer(self, records: RecordDict, request: Request[Any], info: ClientInfo, ctx: Context) -> AnyAnswer:
        answer = answer_in(records, request, self.method, info, ctx, self.deploy.max_bytes)
        check_kept_back(answer)
        if answer.scores.test:
            self._check_scores(answer.scores)
        check_norm(answer.payload, self.deploy.norm_bound)
        return answer

    def _check_scores(self, scores: Scores) -> None:
        check_scores(scores, self.task.num_classes, self.metrics, self.method.known_kinds())
