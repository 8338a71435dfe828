"""This lists how CIFAR-10 and CIFAR-100 were published: archives, class names, checksums."""

from dataclasses import dataclass
from functools import partial

from fedssa.data.cifar_files import Form, parse_binary, parse_python

_CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"

_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""  # the fine ones


@dataclass(frozen=True)
class Release:
    """Describes one of the two data sets as it was published."""

    name: str
    subfolders: tuple[str, ...]  # in which it may be below a folder of data sets
    forms: tuple[Form, ...]  # the first is the one to download
    parquet_folder: str  # on the Hugging Face hub
    label: str  # its column in parquet files
    class_names: tuple[str, ...]
    per_class: int
    sha256: str
    base_url: str = "https://www.cs.toronto.edu/~kriz/"


CIFAR10 = Release(
    name="cifar10",
    subfolders=("cifar10", "cifar-10"),
    forms=(
        Form(
            "cifar-10-python.tar.gz",
            "cifar-10-batches-py",
            (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
            partial(parse_python, label=b"labels"),
        ),
        Form(
            "cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
            partial(parse_binary, num_labels=1),
        ),
    ),
    parquet_folder="plain_text",
    label="label",
    class_names=tuple(_CIFAR10_NAMES.split()),
    per_class=6_000,
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)

CIFAR100 = Release(
    name="cifar100",
    subfolders=("cifar100", "cifar-100"),
    forms=(
        Form(
            "cifar-100-python.tar.gz",
            "cifar-100-python",
            ("train", "test"),
            partial(parse_python, label=b"fine_labels"),
        ),
        Form(
            "cifar-100-binary.tar.gz",
            "cifar-100-binary",
            ("train.bin", "test.bin"),
            partial(parse_binary, num_labels=2),
        ),
    ),
    parquet_folder="cifar100",
    label="fine_label",
    class_names=tuple(_CIFAR100_NAMES.split()),
    per_class=600,
    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
)
