"""The original distribution formats, written small and read back; and everything that can be wrong with them."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import ebl
from ebl.cli import main
from ebl.data import files, formats, load, sources
from ebl.data.fetch import fetch
from ebl.data.sources import FORMS, File

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(8, 3, 32, 32), dtype=np.uint8)
GREY = RNG.integers(256, size=(8, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 4, 5, 6, 9])


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def pickled(part: slice, key: str = "labels") -> bytes:
    return pickle.dumps({"data": PIXELS[part].reshape(-1, 3072), key: LABELS[part].tolist()}, protocol=2)


def binary(part: slice, coarse: bool = False) -> bytes:
    columns = [np.full((len(LABELS[part]), 1), 19)] * coarse + [LABELS[part][:, None], PIXELS[part].reshape(-1, 3072)]
    return np.concatenate(columns, 1).astype(np.uint8).tobytes()


def tar_gz(folder: str, contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, raw in contents.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def md5(raw: bytes) -> str:
    return hashlib.md5(raw).hexdigest()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Write a dataset's files small, and let its entry know their hashes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "data"

    def write(name: str, which: int, contents: dict[str, bytes], folder: str, packed: bool = False) -> Path:
        form = FORMS[name][which]

        def known(file: File) -> File:
            raw = contents.get(file.name, contents.get(file.name.removesuffix(".gz"), b""))
            whole = file.name in contents and file.name.endswith(".gz")
            return File(file.name, md5(raw), md5(gzip.decompress(raw) if whole else raw) if file.name.endswith(".gz") else None)

        form = dataclasses.replace(form, train=tuple(map(known, form.train)), test=tuple(map(known, form.test)))
        (root / folder).mkdir(parents=True, exist_ok=True)
        if packed:
            raw = tar_gz(form.inside, contents)
            form = dataclasses.replace(form, archive=File(form.archive.name, md5(raw)))
            (root / folder / form.archive.name).write_bytes(raw)
        else:
            for file, raw in contents.items():
                (root / folder / file).write_bytes(raw)
        others = [f for i, f in enumerate(FORMS[name]) if i != which]
        monkeypatch.setitem(sources.FORMS, name, (form, *others))
        return root

    return write


MNIST = {
    "train-images-idx3-ubyte": idx(GREY[:6]),
    "train-labels-idx1-ubyte": idx(LABELS[:6]),
    "t10k-images-idx3-ubyte": idx(GREY[6:]),
    "t10k-labels-idx1-ubyte": idx(LABELS[6:]),
}
MNIST_GZ = {f"{name}.gz": gzip.compress(raw) for name, raw in MNIST.items()}
PARTS = [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5), slice(5, 6)]
CIFAR10 = {f"data_batch_{i + 1}": pickled(p) for i, p in enumerate(PARTS)} | {"test_batch": pickled(slice(6, 8))}
CIFAR10_BIN = {f"data_batch_{i + 1}.bin": binary(p) for i, p in enumerate(PARTS)} | {"test_batch.bin": binary(slice(6, 8))}
CIFAR100 = {"train": pickled(slice(0, 6), "fine_labels"), "test": pickled(slice(6, 8), "fine_labels")}
CIFAR100_BIN = {"train.bin": binary(slice(0, 6), True), "test.bin": binary(slice(6, 8), True)}


def mat(part: slice) -> bytes:
    from scipy.io import savemat

    out = io.BytesIO()
    labels = np.where(LABELS[part] == 0, 10, LABELS[part])  # digit 0 is written 10
    savemat(out, {"X": PIXELS[part].transpose(2, 3, 1, 0), "y": labels[:, None].astype(np.uint8)}, do_compression=True)
    return out.getvalue()


SVHN = {"train_32x32.mat": mat(slice(0, 6)), "test_32x32.mat": mat(slice(6, 8))}

CASES = {
    "idx": ("mnist", 0, MNIST, "MNIST/raw", False),
    "idx.gz": ("mnist", 0, MNIST_GZ, "MNIST/raw", False),
    "idx.gz in a plain folder": ("fashion-mnist", 0, MNIST_GZ, "fashion-mnist", False),
    "kuzushiji": ("kmnist", 0, MNIST_GZ, "KMNIST/raw", False),
    "cifar10 python": ("cifar10", 0, CIFAR10, "cifar-10-batches-py", False),
    "cifar10 python tar.gz": ("cifar10", 0, CIFAR10, ".", True),
    "cifar10 binary": ("cifar10", 1, CIFAR10_BIN, "cifar-10-batches-bin", False),
    "cifar10 binary tar.gz": ("cifar10", 1, CIFAR10_BIN, "cifar10", True),
    "cifar100 python": ("cifar100", 0, CIFAR100, "cifar-100-python", False),
    "cifar100 python tar.gz": ("cifar100", 0, CIFAR100, ".", True),
    "cifar100 binary": ("cifar100", 1, CIFAR100_BIN, "cifar-100-binary", False),
    "cifar100 binary tar.gz": ("cifar100", 1, CIFAR100_BIN, ".", True),
    "svhn": ("svhn", 0, SVHN, "SVHN", False),
}


@pytest.mark.parametrize("case", CASES)
def test_every_original_format_is_read_back(small, case):
    name, which, contents, folder, packed = CASES[case]
    root = small(name, which, contents, folder, packed)
    data = load(name, root)
    pixels = GREY[:, None] if "mnist" in name else PIXELS
    np.testing.assert_array_equal(data.train.images, pixels[:6])
    np.testing.assert_array_equal(data.test.images, pixels[6:])
    assert data.train.labels.tolist() == LABELS[:6].tolist()
    assert data.test.labels.tolist() == LABELS[6:].tolist()
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64


def test_a_recompressed_gzip_is_judged_by_its_content(small):
    root = small("mnist", 0, MNIST_GZ, "MNIST/raw")
    for name, raw in MNIST.items():
        (root / "MNIST/raw" / f"{name}.gz").write_bytes(gzip.compress(raw, 1, mtime=1))
    assert len(load("mnist", root).train.labels) == 6


def test_a_recompressed_kuzushiji_is_judged_by_its_structure(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    raw = tmp_path / "data" / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    contents = {}
    for part, count in (("train", 60000), ("t10k", 10000)):
        contents[f"{part}-images-idx3-ubyte"] = idx(np.zeros((count, 28, 28), np.uint8))
        contents[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
    for name, content in contents.items():
        (raw / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    (raw / "t10k-images-idx3-ubyte.gz").unlink()
    (raw / "t10k-images-idx3-ubyte").write_bytes(contents["t10k-images-idx3-ubyte"])  # unpacked: no hash either
    data = load("kmnist", tmp_path / "data")
    assert data.train.labels.bincount().tolist() == [6000] * 10
    (record,) = caplog.records
    assert "kmnist: no hash of their content is known, only the structure was checked: train-images" in record.getMessage()
    labels = np.arange(10000) % 10
    for name, wrong, said in (
        ("t10k-labels-idx1-ubyte", idx(np.where(labels == 3, 4, labels)), "is not kmnist's file"),  # as in MNIST: uneven
        ("t10k-labels-idx1-ubyte", idx(labels + 1), "is not kmnist's file"),
        ("t10k-labels-idx1-ubyte", idx(labels[:9990]), "is not kmnist's file"),
        ("t10k-labels-idx1-ubyte", contents["t10k-labels-idx1-ubyte"][1:], "no idx file"),
        ("t10k-images-idx3-ubyte", idx(np.zeros((10000, 27, 28), np.uint8)), "is not kmnist's file"),
        ("t10k-images-idx3-ubyte", contents["t10k-images-idx3-ubyte"][:-1], "cut short"),
    ):
        path = next(raw.glob(f"{name}*"))
        path.write_bytes(gzip.compress(wrong, 1) if path.suffix else wrong)
        with pytest.raises(ebl.InputError, match=said):
            load("kmnist", tmp_path / "data")
        path.write_bytes(gzip.compress(contents[name], 1) if path.suffix else contents[name])
    load("kmnist", tmp_path / "data")
    fashion = FORMS["fashion-mnist"][0]
    known = dataclasses.replace(fashion.test[1], content=md5(contents["t10k-labels-idx1-ubyte"]))
    form = dataclasses.replace(fashion, test=(fashion.test[0], known))
    monkeypatch.setitem(sources.FORMS, "fashion-mnist", (form,))
    with pytest.raises(ebl.InputError, match=r"t10k-labels-idx1-ubyte.gz is not kmnist's file"):
        files.check("kmnist", files.find("kmnist", tmp_path / "data"), again=True)


def test_an_archive_packed_anew_is_judged_by_its_files(small):
    root = small("cifar10", 0, CIFAR10, ".", True)
    (root / "cifar-10-python.tar.gz").write_bytes(tar_gz("cifar-10-batches-py", {"readme.html": b"hi", **CIFAR10}))
    assert len(load("cifar10", root).train.labels) == 6
    (root / "cifar-10-python.tar.gz").write_bytes(tar_gz("cifar-10-batches-py", CIFAR10 | {"test_batch": pickled(slice(0, 2))}))
    with pytest.raises(ebl.InputError, match="test_batch inside is not cifar10's"):
        load("cifar10", root)


def test_hashes_are_remembered_and_checked_again_on_request_or_change(small, monkeypatch):
    root = small("mnist", 0, MNIST_GZ, "MNIST/raw")
    load("mnist", root)
    hashed = []
    real = files._md5
    monkeypatch.setattr(files, "_md5", lambda path: hashed.append(path.name) or real(path))
    load("mnist", root)
    assert hashed == []
    assert all("as distributed" in line for line in files.check("mnist", files.find("mnist", root), again=True))
    assert len(hashed) == 4
    path = root / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(LABELS[:2])))
    with pytest.raises(ebl.InputError, match=r"t10k-labels-idx1-ubyte.gz is not mnist's file \(MD5"):
        load("mnist", root)


def test_a_file_checked_as_one_set_is_not_taken_for_another(small):
    root = small("mnist", 0, MNIST_GZ, ".")
    load("mnist", root)
    for name in ("fashion-mnist", "kmnist"):
        with pytest.raises(ebl.InputError):
            load(name, root)
    load("mnist", root)


def test_the_folder_comes_from_the_argument_then_ebl_data_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EBL_DATA", raising=False)
    assert files.data_folder().parts[-2:] == ("ebl", "data")
    monkeypatch.setenv("EBL_DATA", "/there")
    assert files.data_folder() == Path("/there")
    assert files.data_folder("/here") == Path("/here")


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


def test_a_pickle_that_calls_os_system_runs_nothing(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps({"data": Evil(), "labels": []}, protocol=2)
    root = small("cifar10", 0, CIFAR10 | {"test_batch": evil}, "cifar-10-batches-py")
    with pytest.raises(ebl.InputError, match=r"asks for (posix|nt|os)\.system.*nothing was run"):
        load("cifar10", root)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("name", "contents", "change", "words"),
    [
        ("mnist", MNIST, {"train-images-idx3-ubyte": idx(GREY[:6])[:-5]}, "cut short"),
        ("mnist", MNIST, {"train-images-idx3-ubyte": b""}, "no idx file"),
        ("mnist", MNIST, {"train-images-idx3-ubyte": b"\0\0\x0d\x03" + idx(GREY)[4:]}, "not 00 00 08"),
        ("mnist", MNIST, {"train-images-idx3-ubyte": gzip.compress(idx(GREY[:6]))[:-9]}, "cut short"),
        ("mnist", MNIST, {"train-labels-idx1-ubyte": idx(LABELS[:5])}, "6 images and 5 labels"),
        ("mnist", MNIST, {"train-labels-idx1-ubyte": idx(LABELS[:6] + 5)}, "label 10 is out of range"),
        ("mnist", MNIST, {"train-labels-idx1-ubyte": idx(GREY[:6])}, "swapped"),
        ("mnist", MNIST, {"t10k-images-idx3-ubyte": idx(GREY[6:, :27])}, r"\(2, 1, 27, 28\)"),
        ("cifar10", CIFAR10, {"data_batch_2": CIFAR10["data_batch_2"][:50]}, "no CIFAR batch"),
        ("cifar10", CIFAR10, {"data_batch_2": pickle.dumps([1, 2])}, "no CIFAR batch"),
        ("cifar10", CIFAR10, {"data_batch_2": pickle.dumps({"data": PIXELS[:1, :1], "labels": [1]}, 2)}, "3072"),
        ("svhn", SVHN, {"train_32x32.mat": SVHN["train_32x32.mat"][:300]}, "scipy"),
    ],
)
def test_damaged_files_are_named_even_when_no_hash_tells(small, name, contents, change, words):
    folder = {"mnist": "MNIST/raw", "cifar10": "cifar-10-batches-py", "svhn": "SVHN"}[name]
    root = small(name, 0, contents | change, folder)  # the entry takes the damaged file's hash for right
    with pytest.raises(ebl.InputError, match=words) as error:
        load(name, root)
    assert "\n" not in str(error.value)


def test_a_binary_batch_cut_short_is_named():
    with pytest.raises(ebl.InputError, match="cut short"):
        formats.read_cifar_binary(binary(slice(0, 2))[:-1], "x.bin", 1)


@pytest.mark.parametrize(
    ("packed", "folder", "file"), [(True, ".", "cifar-10-python.tar.gz"), (False, "cifar-10-batches-py", "data_batch_3")]
)
def test_one_flipped_bit_is_noticed(small, packed, folder, file):
    root = small("cifar10", 0, CIFAR10, folder, packed)
    load("cifar10", root)
    path = root / folder / file
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(bytes(raw))
    with pytest.raises(ebl.InputError, match=rf"{file}.*fetch"):
        load("cifar10", root)


def test_a_right_archive_is_used_where_a_loose_file_is_damaged(small, caplog):
    root = small("cifar10", 0, CIFAR10, ".", True)
    (root / "cifar-10-batches-py").mkdir()
    for name, raw in CIFAR10.items():
        (root / "cifar-10-batches-py" / name).write_bytes(raw)
    load("cifar10", root)
    assert caplog.records == []  # the loose files are right: the archive does not matter
    (root / "cifar-10-batches-py/data_batch_3").write_bytes(pickled(slice(0, 1)))
    for _ in range(2):
        caplog.clear()
        np.testing.assert_array_equal(load("cifar10", root).train.images, PIXELS[:6])
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "data_batch_3 is not cifar10's file" in record.getMessage()
        assert record.getMessage().endswith("cifar-10-python.tar.gz is used")
    caplog.clear()
    assert [path.name for path in fetch("cifar10", root)] == ["cifar-10-python.tar.gz"]  # nothing needs to be fetched
    assert len(caplog.records) == 1
    (root / "cifar-10-python.tar.gz").write_bytes(b"damaged too")
    with pytest.raises(ebl.InputError, match="data_batch_3 is not cifar10's file"):
        load("cifar10", root)


def test_a_form_of_known_hashes_goes_before_one_of_none(small, monkeypatch, caplog):
    root = small("cifar100", 1, CIFAR100_BIN, ".", True)
    form, other = FORMS["cifar100"]
    unknown = [tuple(dataclasses.replace(f, md5=None) for f in part) for part in (form.train, form.test)]
    form = dataclasses.replace(form, train=unknown[0], test=unknown[1])  # as its real entry is
    monkeypatch.setitem(sources.FORMS, "cifar100", (form, other))
    (root / "train.bin").write_bytes(binary(slice(1, 7), True))  # of the right structure
    (root / "test.bin").write_bytes(CIFAR100_BIN["test.bin"])
    np.testing.assert_array_equal(load("cifar100", root).train.images, PIXELS[:6])
    (root / "cifar-100-binary.tar.gz").unlink()
    np.testing.assert_array_equal(load("cifar100", root).train.images, PIXELS[1:7])
    assert caplog.records == []


def test_missing_files_are_named_with_the_remedy(small, tmp_path):
    with pytest.raises(ebl.InputError, match=r"no files in .*ebl data fetch svhn.*put train_32x32.mat, test_32x32.mat into"):
        load("svhn", tmp_path)
    root = small("mnist", 0, MNIST, "MNIST/raw")
    (root / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ebl.InputError, match=r"t10k-labels-idx1-ubyte.gz missing; fetch the rest with"):
        load("mnist", root)


def test_the_entries_are_the_papers_five_and_kuzushiji():
    assert set(FORMS) == {"mnist", "fashion-mnist", "kmnist", "svhn", "cifar10", "cifar100"}
    for forms in FORMS.values():
        assert all(len(form.urls) == 2 for form in forms)
        for form in forms:
            for file in (*form.train, *form.test, *([form.archive] if form.archive else [])):
                assert file.md5 is None or len(file.md5) == 32


@pytest.fixture
def server(tmp_path):
    """A web server on this machine that knows byte ranges, and can break off in the middle."""
    served: dict[str, bytes] = {}
    log: list[tuple[str, str | None]] = []
    cut: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name, wanted = self.path.rsplit("/", 1)[1], self.headers.get("Range")
            log.append((self.path, wanted))
            if name not in served or "/down/" in self.path:
                self.send_error(404)
                return
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            body = served[name][first:]
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: cut.pop()] if cut else body)

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", served, log, cut
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_fetch_takes_the_mirror_resumes_checks_and_leaves_no_half_file(small, server, monkeypatch, tmp_path):
    base, served, log, cut = server
    small("svhn", 0, SVHN, "made")
    served.update(SVHN)
    form = dataclasses.replace(FORMS["svhn"][0], urls=(f"{base}/down/", f"{base}/mirror/"))
    monkeypatch.setitem(sources.FORMS, "svhn", (form,))
    root = tmp_path / "fetched"
    cut.append(100)
    with pytest.raises(ebl.InputError, match=r"could not be fetched.*put train_32x32.mat"):
        fetch("svhn", root)
    assert [p.name for p in (root / "SVHN").iterdir()] == [".train_32x32.mat.part"]
    told = []
    fetch("svhn", root, lambda name, done, total: told.append((name, done, total)))
    assert ("/mirror/train_32x32.mat", "bytes=100-") in log
    assert told[-1] == ("test_32x32.mat", len(SVHN["test_32x32.mat"]), len(SVHN["test_32x32.mat"]))
    assert {p.name for p in (root / "SVHN").iterdir()} == set(SVHN)
    assert len(load("svhn", root).train.labels) == 6
    seen = len(log)
    fetch("svhn", root)  # all there: nothing is asked for
    assert len(log) == seen
    served["train_32x32.mat"] = b"something else"
    (root / "SVHN" / "train_32x32.mat").unlink()
    with pytest.raises(ebl.InputError, match="could not be fetched"):
        fetch("svhn", root)
    assert {p.name for p in (root / "SVHN").iterdir()} == {"test_32x32.mat"}


def test_a_folder_that_cannot_be_made_is_no_fault_of_the_addresses(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ebl.InputError, match=r"file/data cannot be made \(Not a directory\): choose another --data-dir"):
        fetch("svhn", tmp_path / "file" / "data")


def test_the_data_command_lists_checks_and_says_what_to_do(small, capsys, monkeypatch, tmp_path):
    root = small("mnist", 0, MNIST_GZ, "MNIST/raw")
    main(["data", "list", "--data-dir", str(root)])
    assert capsys.readouterr().out.count("not here") == 5
    main(["data", "list", "svhn", "--data-dir", str(root)])
    said = capsys.readouterr().out
    assert (said.count("not here"), "svhn" in said, "mnist" in said) == (1, True, False)
    main(["data", "check", "--data-dir", str(root)])
    said = capsys.readouterr().out
    assert said.count("as distributed") == 4
    assert "kmnist: not here\n" in said
    (root / "MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"x"))
    for words, said in (
        (["check", "mnist"], "wrong or missing: mnist"),
        (["check"], "wrong or missing: mnist"),
        (["check", "svhn"], "wrong or missing: svhn"),
        (["fetch"], "needs a dataset"),
        (["fetch", "minst"], "did you mean mnist"),
        (["fech"], "did you mean fetch"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["data", *words, "--data-dir", str(root)])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err


def test_the_list_says_what_an_incomplete_set_has_and_needs(small, capsys):
    root = small("svhn", 0, SVHN, "SVHN")
    (root / "SVHN/test_32x32.mat").unlink()
    (root / "cifar-10-batches-py").mkdir()
    (root / "cifar-10-batches-py/data_batch_1").write_bytes(b"")
    small("cifar10", 1, CIFAR10_BIN, "cifar-10-batches-bin")
    (root / "cifar-10-batches-bin/test_batch.bin").unlink()  # the form that lacks least is told of
    main(["data", "list", "--data-dir", str(root)])
    said = " ".join(capsys.readouterr().out.split())
    assert "incomplete (has train_32x32.mat, needs test_32x32.mat)" in said
    assert "data_batch_5.bin, needs test_batch.bin)" in said
    assert said.count("not here") == 4
    with pytest.raises(ebl.InputError, match=r"cifar10: \S*test_batch.bin missing; fetch the rest with"):
        load("cifar10", root)


STATISTICS = {"cifar10": (0.407, 0.407, 0.434)}  # its std is tripled in the paper


@pytest.mark.parametrize("name", FORMS)
def test_normalised_real_training_sets_have_mean_zero_and_std_one(name):
    from ebl.data.batches import Batches

    if not files.is_here(name, files.data_folder()):
        pytest.skip(f"{name}'s files are not in {files.data_folder()}")
    data = load(name)
    x = torch.cat([x for x, _ in Batches(data.train, dataclasses.replace(data.spec, pad=0), 1000).in_order()])
    np.testing.assert_allclose(x.double().mean((0, 2, 3)), 0, atol=0.01)
    np.testing.assert_allclose(x.double().std((0, 2, 3)), STATISTICS.get(name, 1), atol=0.01)
