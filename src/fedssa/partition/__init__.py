"""A partition says who holds which samples: it deals a data set by its labels, and each client splits its own 8:1:1."""

from fedssa.partition.by_classes import ByClasses
from fedssa.partition.dirichlet import Dirichlet
from fedssa.partition.iid import Iid
from fedssa.partition.local_split import LocalSplit, split_by_class, stratified
from fedssa.partition.partition import Partition

PARTITIONS: dict[str, type[Partition]] = {"classes": ByClasses, "dirichlet": Dirichlet, "iid": Iid}

__all__ = ["PARTITIONS", "ByClasses", "Dirichlet", "Iid", "LocalSplit", "Partition", "split_by_class", "stratified"]
