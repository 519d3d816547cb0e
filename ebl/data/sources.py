"""The files each dataset is distributed in: names, hashes, folders they are found in, addresses they come from.

`content` is the MD5 of a gzip's decompressed bytes, so that a recompressed or unpacked file is known too. Where it is not
known, the structure of such a file decides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    name: str
    md5: str | None  # as distributed
    content: str | None = None
    shape: tuple[int, ...] | None = None  # of an idx file whose content has no known hash; its labels are equally frequent


@dataclass(frozen=True)
class Form:
    """One way a dataset is distributed. Loose files lie in one of `folders`; `archive` holds them under `inside`."""

    kind: str  # idx, cifar-python, cifar-binary or mat
    train: tuple[File, ...]
    test: tuple[File, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]  # of the folder that has the archive or, without one, the files
    archive: File | None = None
    inside: str = ""
    label_bytes: int = 1  # in front of each image of a binary version; the last one counts
    label_key: str = "labels"  # in a python version


def _idx(folder: str, urls: tuple[str, ...], md5: tuple[str, ...], content: tuple[str | None, ...]) -> Form:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    shapes = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
    files = [
        File(f"{name}.gz", m, c, None if c else shape) for name, m, c, shape in zip(names, md5, content, shapes, strict=True)
    ]
    return Form("idx", tuple(files[:2]), tuple(files[2:]), (f"{folder}/raw", folder), urls)


_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")

FORMS: dict[str, tuple[Form, ...]] = {
    "mnist": (
        _idx(
            "MNIST",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (
                "6bbc9ace898e44ae57da46a324031adb",
                "a25bea736e30d166cdddb491f175f624",
                "2646ac647ad5339dbf082846283269ea",
                "27ae3e4e09519cfbb04c329615203637",
            ),
        ),
    ),
    "fashion-mnist": (
        _idx(
            "FashionMNIST",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (
                "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "9018921c3c673c538a1fc5bad174d6f9",
                "8181f5470baa50b63fa0f6fddb340f0a",
                "15d484375f8d13e6eb1aabb0c3f46965",
            ),
        ),
    ),
    "kmnist": (
        _idx(
            "KMNIST",
            ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
            (
                "bdb82020997e1d708af4cf47b453dcf7",
                "e144d726b3acfaa3e44228e80efcd344",
                "5c965bf0a639b31b8f53240b1b52f4d7",
                "7320c461ea6c1c855c0b718fb2a4b134",
            ),
            (None, None, None, None),
        ),
    ),
    "svhn": (
        Form(
            "mat",
            (File("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),),
            (File("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),),
            ("SVHN", "svhn"),
            ("http://ufldl.stanford.edu/housenumbers/", "https://ufldl.stanford.edu/housenumbers/"),
        ),
    ),
    "cifar10": (
        Form(
            "cifar-python",
            (
                File("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                File("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                File("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                File("data_batch_4", "634d18415352ddfa80567beed471001a"),
                File("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            (File("test_batch", "40351d587109b95175f43aff81a1287e"),),
            ("cifar-10-batches-py",),
            _TORONTO,
            File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
            "cifar-10-batches-py",
        ),
        Form(
            "cifar-binary",
            (
                File("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
                File("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
                File("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
                File("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
                File("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ),
            (File("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            ("cifar-10-batches-bin",),
            _TORONTO,
            File("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
            "cifar-10-batches-bin",
        ),
    ),
    "cifar100": (
        Form(
            "cifar-python",
            (File("train", "16019d7e3df5f24257cddd939b257f8d"),),
            (File("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            ("cifar-100-python",),
            _TORONTO,
            File("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
            "cifar-100-python",
            label_key="fine_labels",
        ),
        Form(
            "cifar-binary",
            (File("train.bin", None),),
            (File("test.bin", None),),
            ("cifar-100-binary",),
            _TORONTO,
            File("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
            "cifar-100-binary",
            label_bytes=2,
        ),
    ),
}
