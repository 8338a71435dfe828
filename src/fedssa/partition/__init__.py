"""A partition says who holds which samples: it deals a data set, and each client splits its own 8:1:1.

Where the data were published in parts, those are kept: only training samples are dealt and split.
"""

from fedssa.partition.answer import dealt_rows
from fedssa.partition.by_classes import ByClasses
from fedssa.partition.by_column import ByColumn
from fedssa.partition.dirichlet import Dirichlet
from fedssa.partition.iid import Iid
from fedssa.partition.local_split import LocalSplit, share_out, split_by_class, stratified
from fedssa.partition.partition import ByLabels, Indices, Partition, SampleTable

PARTITIONS: dict[str, type[Partition]] = {
    "classes": ByClasses,
    "dirichlet": Dirichlet,
    "iid": Iid,
    "column": ByColumn,
}

__all__ = [
    "PARTITIONS",
    "ByClasses",
    "ByColumn",
    "ByLabels",
    "Dirichlet",
    "Iid",
    "Indices",
    "LocalSplit",
    "Partition",
    "SampleTable",
    "dealt_rows",
    "share_out",
    "split_by_class",
    "stratified",
]
