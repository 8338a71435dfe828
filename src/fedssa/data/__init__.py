"""Data sets come from many places, and all get one canonical form."""

from fedssa.data.cifar import Cifar10, Cifar100
from fedssa.data.csv import Csv
from fedssa.data.dataset import Arrays, Dataset, Source, prepare
from fedssa.data.digits import Digits
from fedssa.data.function import FromFunction
from fedssa.data.hub import HuggingFace
from fedssa.data.images import ImageFolder
from fedssa.data.npz import Npz
from fedssa.data.parquet import Parquet
from fedssa.data.places import cache_folder, expand

__all__ = [
    "DATASETS",
    "Arrays",
    "Cifar10",
    "Cifar100",
    "Csv",
    "Dataset",
    "Digits",
    "FromFunction",
    "HuggingFace",
    "ImageFolder",
    "Npz",
    "Parquet",
    "Source",
    "cache_folder",
    "expand",
    "prepare",
]

DATASETS: dict[str, type] = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "parquet": Parquet,
    "npz": Npz,
    "csv": Csv,
    "images": ImageFolder,
    "hf": HuggingFace,
}
