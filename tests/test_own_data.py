"""Data of the user's own: an .npz, or folders of images."""

import dataclasses
import hashlib
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import ebl
from ebl.cli import main
from ebl.config import Config, Model
from ebl.data import load, spec
from ebl.data.batches import Batches
from ebl.data.own import describe
from ebl.data.splits import Split, held_out
from ebl.presets import preset
from ebl.train import load_run, train

RNG = np.random.default_rng(1)
X = RNG.integers(256, size=(30, 8, 12, 3), dtype=np.uint8)
Y = np.arange(30) % 3


def npz(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_an_npz_with_images_and_labels_is_split_and_described(tmp_path):
    data = load(npz(tmp_path / "mine.npz", images=X, labels=Y))
    assert describe(data) == "24 + 6 images, 3×8×12, 3 classes"
    assert data.train.labels.bincount().tolist() == [8, 8, 8]
    together = torch.cat([data.train.images, data.test.images]).flatten(1).tolist()
    assert sorted(together) == sorted(X.transpose(0, 3, 1, 2).reshape(30, -1).tolist())
    mean = data.train.images.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(torch.tensor(data.spec.mean, dtype=torch.float64), mean)
    x = torch.cat([x for x, _ in Batches(data.train, data.spec, 7).in_order()])
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), rtol=1e-3, atol=0)


@pytest.mark.parametrize("shape", [(30, 8, 12), (30, 8, 12, 1), (30, 1, 8, 12)])
def test_grey_images_may_have_any_usual_shape(tmp_path, shape):
    grey = X[..., 0]
    path = npz(tmp_path / "m.npz", train_images=grey.reshape(shape), train_labels=Y, test_images=grey[:5], test_labels=Y[:5])
    data = load(path)
    np.testing.assert_array_equal(data.train.images[:, 0], grey)
    assert len(data.test.labels) == 5


def folder(root, split=""):
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        (root / split / "abc"[y]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x).save(root / split / "abc"[y] / f"{i:02d}.png")
    return str(root)


def test_a_folder_of_images_for_each_class(tmp_path):
    data = load(folder(tmp_path / "mine"))
    assert describe(data) == "24 + 6 images, 3×8×12, 3 classes"
    folder(tmp_path / "two", "train")
    folder(tmp_path / "two", "test")
    data = load(str(tmp_path / "two"))
    assert len(data.train.labels) == len(data.test.labels) == 30
    np.testing.assert_array_equal(data.train.images[0], X[0].transpose(2, 0, 1))
    assert data.train.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10


def test_images_in_folders_below_a_class_are_read_in_order(tmp_path):
    for split in ("train", "test"):
        folder(tmp_path / "mine", split)
    below = tmp_path / "mine" / "train" / "b" / "07" / "deeper"
    below.mkdir(parents=True)
    for file in ("25.png", "28.png"):
        (tmp_path / "mine" / "train" / "b" / file).rename(below / file)
    (below / "._28.png").write_bytes(b"a file manager's")
    (below / ".thumbnails").mkdir()
    Image.fromarray(X[0]).save(below / ".thumbnails" / "25.png")
    (below / "round").symlink_to(tmp_path / "mine" / "train" / "b")  # a link that leads back adds nothing
    (below / "gone.txt").symlink_to("nowhere")
    (tmp_path / "mine" / "train" / "c").rename(tmp_path / "elsewhere")
    (tmp_path / "mine" / "train" / "c").mkdir()
    (tmp_path / "mine" / "train" / "c" / "linked").symlink_to(tmp_path / "elsewhere")
    data = load(str(tmp_path / "mine"))
    order = [*range(0, 30, 3), 1, 4, 25, 28, 7, 10, 13, 16, 19, 22, *range(2, 30, 3)]  # 07/deeper comes before 07.png
    np.testing.assert_array_equal(data.train.images, X[order].transpose(0, 3, 1, 2))
    assert data.train.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10


def test_a_bare_name_that_is_here_is_told_how_to_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "mine")
    (tmp_path / "pictures").write_bytes(b"")
    for name, kind in (("mine", "folder"), ("pictures", "file")):
        with pytest.raises(ebl.InputError, match=rf"dataset = '{name}' is a {kind} here.*: write \./{name}, or use one of fa"):
            Config(dataset=name)
    assert len(load("./mine").test.labels) == 6
    with pytest.raises(ebl.InputError, match="dataset = '' is unknown"):
        load("")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: str(p / "none.npz"), "no such file"),
        (lambda p: npz(p / "a.npz", images=X.astype(np.float32), labels=Y), "float32; give bytes"),
        (lambda p: npz(p / "a.npz", images=X[:, :, :, :2], labels=Y), "1 or 3 channels"),
        (lambda p: npz(p / "a.npz", images=X, labels=Y[:-1]), "30 images and 29 labels"),
        (lambda p: npz(p / "a.npz", images=X, labels=Y - 1), "labels run from -1"),
        (lambda p: npz(p / "a.npz", images=X, labels=Y * 10), "number the classes"),
        (lambda p: npz(p / "a.npz", images=X[:, :3], labels=Y), "first or last"),
        (lambda p: npz(p / "a.npz", images=X[:, :0], labels=Y), "with pixels"),
        (lambda p: _damaged_npz(p / "a.npz"), "no whole .npz"),
        (lambda p: _npy(p / "a.npz"), "no whole .npz"),
        (lambda p: _only_train(p), "train and test"),
        (lambda p: _other_classes(p), "differ in c, d"),
        (lambda p: _float_image(p), "mode F"),
        (lambda p: npz(p / "a.npz", images=X, labels=Y.astype(float)), "one whole number"),
        (lambda p: npz(p / "a.npz", pictures=X), "holds pictures: it needs images and labels"),
        (lambda p: npz(p / "a.npz", images=np.array([Y], dtype=object), labels=Y), "no whole .npz of plain arrays"),
        (lambda p: _write(p / "a.npz", b"hello"), "no whole .npz of plain arrays"),
        (lambda p: _mkdir(p / "empty"), "a folder for each class"),
        (lambda p: _two_sizes(p), "make all images alike"),
        (lambda p: _no_images(p), "holds no images"),
        (lambda p: _broken_image(p), "cannot be read"),
    ],
)
def test_anything_else_gets_a_clear_error(tmp_path, make, words):
    with pytest.raises(ebl.InputError, match=words) as error:
        Config(dataset=make(tmp_path))
    assert "\n" not in str(error.value)


def _damaged_npz(path):
    np.savez_compressed(path, images=X, labels=Y)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 255
    return _write(path, bytes(raw))


def _npy(path):
    with path.open("wb") as file:
        np.save(file, X)
    return str(path)


def _only_train(path):
    folder(path / "f", "train")
    folder(path / "f", "val")
    return str(path / "f")


def _other_classes(path):
    folder(path / "f", "train")
    folder(path / "f", "test")
    (path / "f" / "test" / "c").rename(path / "f" / "test" / "d")
    return str(path / "f")


def _float_image(path):
    root = folder(path / "f")
    Image.fromarray(np.zeros((8, 12), np.float32)).save(path / "f" / "b" / "99.tiff")
    return root


def _write(path, raw):
    path.write_bytes(raw)
    return str(path)


def _mkdir(path):
    path.mkdir()
    return str(path)


def _two_sizes(path):
    root = folder(path / "f")
    Image.fromarray(X[0][:4]).save(path / "f" / "b" / "99.png")
    return root


def _no_images(path):
    root = folder(path / "f")
    (path / "f" / "d").mkdir()
    return root


def _broken_image(path):
    root = folder(path / "f")
    (path / "f" / "b" / "99.png").write_bytes(b"not a picture")
    return root


def small_run(path):
    return dataclasses.replace(
        preset("quick"),
        dataset=path,
        model=Model(hidden=(4, 4), gains=(0.5,)),
        pad=None,
        epochs=1,
        batch_size=8,
        val=6,
        crop=2,
        augment=True,
    )


def test_own_data_train_and_load_again(tmp_path):
    path = npz(tmp_path / "mine.npz", images=X, labels=Y)
    assert spec(path).num_classes == 3
    result = train(small_run(path), tmp_path / "run")
    assert {"val_error", "val_cost", "test_error"} <= set(result["final"])
    _, net = load_run(tmp_path / "run")
    assert net.input_shape == (3, 8, 12)


def test_a_run_keeps_the_counts_and_hashes_of_its_data(tmp_path):
    path = npz(tmp_path / "mine.npz", train_images=X, train_labels=Y, test_images=X[:5], test_labels=Y[:5])
    train(small_run(path), tmp_path / "run")

    def sha256(x, y):
        return hashlib.sha256(x.transpose(0, 3, 1, 2).tobytes() + y.astype("<i8").tobytes()).hexdigest()

    assert json.loads((tmp_path / "run" / "data.json").read_text()) == {
        "train_images": 30,
        "test_images": 5,
        "image_shape": [3, 8, 12],
        "train_sha256": sha256(X, Y),
        "test_sha256": sha256(X[:5], Y[:5]),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train_images": X[:-1], "train_labels": Y[:-1]}, "train_images 30 then, 29 now"),
        ({"train_images": X // 2}, r"other content in the training set\)"),
        ({"train_labels": Y[::-1]}, r"other content in the training set\)"),
        ({"test_images": X[1:6]}, r"other content in the test set\)"),
        ({"train_labels": np.arange(30) % 4}, "other content"),  # one class more: another network
        ({"train_images": X[:, :, ::2], "test_images": X[:5, :, ::2]}, r"image_shape \[3, 8, 12\] then, \[3, 8, 6\] now"),
    ],
)
def test_data_that_changed_since_training_are_refused(tmp_path, capsys, change, said):
    arrays = {"train_images": X, "train_labels": Y, "test_images": X[:5], "test_labels": Y[:5]}
    path, out = npz(tmp_path / "mine.npz", **arrays), tmp_path / "run"
    dense = dataclasses.replace(small_run(path), model=Model("dense", (4, 4)))
    before = train(dense, out)
    npz(tmp_path / "mine.npz", **(arrays | change))
    line = rf"mine.npz' has changed since .*run was trained on it, or is another \(.*{said}.*: restore it, or train again with"
    with pytest.raises(ebl.InputError, match=line):
        train(dense, out, resume=True)
    with pytest.raises(ebl.InputError, match=line):
        load_run(out)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(out)])
    assert stop.value.code == 2
    assert re.search(line, capsys.readouterr().err.strip())
    (out / "data.json").rename(tmp_path / "data.json")  # as runs were before there was one
    assert train(dense, out, resume=True) == before
    assert not (out / "data.json").exists()
    npz(tmp_path / "mine.npz", **arrays)
    (tmp_path / "data.json").rename(out / "data.json")
    assert train(dense, out, resume=True) == before
    main(["evaluate", str(out)])


def test_a_run_is_tested_from_anywhere_when_told_where_its_data_are(tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    folder(tmp_path / "there" / "mine")
    train(small_run("./mine"), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["evaluate", "run"])
    assert "those of run may have moved: --dataset names them" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", "run", "--dataset", "mnist"])
    assert "--dataset mnist: it is for data of your own" in capsys.readouterr().err
    main(["evaluate", "run", "--dataset", "there/mine"])
    (tmp_path / "there" / "mine" / "a" / "00.png").unlink()
    with pytest.raises(SystemExit):
        main(["evaluate", "run", "--dataset", "there/mine"])
    assert "dataset = 'there/mine' has changed since run was trained on it, or is another" in capsys.readouterr().err


def test_an_image_moved_to_another_class_is_a_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "mine")
    train(small_run("./mine"), tmp_path / "run")
    (tmp_path / "mine" / "a" / "00.png").rename(tmp_path / "mine" / "b" / "00.png")
    with pytest.raises(ebl.InputError, match=r"dataset = '\./mine' has changed since"):
        load_run(tmp_path / "run")


def test_a_named_dataset_that_is_not_the_one_trained_on_is_refused(tmp_path, capsys):
    data = load("fashion-mini")
    few = dataclasses.replace(data, train=data.train.take(torch.arange(40)))
    train(dataclasses.replace(preset("quick"), model=Model(hidden=(2, 2)), epochs=1), tmp_path / "run", dataset=few)
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run")])
    assert "'fashion-mini' has changed" in (said := capsys.readouterr().err)
    assert "(train_images 40 then, 5000 now)" in said


def test_deep_grey_images_keep_their_upper_bytes_and_hidden_files_are_no_images(tmp_path):
    deep = (np.arange(96, dtype=np.uint16) * 600).reshape(8, 12)
    for label in "ab":
        (tmp_path / "f" / label).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(deep).save(tmp_path / "f" / label / f"{i}.png")
        (tmp_path / "f" / label / "._0.png").write_bytes(b"a file manager's")
    data = load(str(tmp_path / "f"))
    np.testing.assert_array_equal(data.train.images[0, 0], deep >> 8)


def test_crops_and_flips_need_augmentation_and_fit_the_images():
    with pytest.raises(ebl.InputError, match="add --augment"):
        dataclasses.replace(preset("quick"), crop=2)
    with pytest.raises(ebl.InputError, match="crop = 28"):
        dataclasses.replace(preset("quick"), crop=28, augment=True)


def test_holding_out_is_stratified_seeded_and_exact():
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    split = Split(torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1), labels)
    rest, val = held_out(split, 0.1, seed=0)
    assert val.labels.bincount().tolist() == [5, 3, 2]
    assert sorted(rest.images.flatten().tolist() + val.images.flatten().tolist()) == list(range(100))
    assert torch.equal(held_out(split, 0.1, seed=0)[1].images, val.images)
    assert not torch.equal(held_out(split, 0.1, seed=1)[1].images, val.images)
    uneven = Split(torch.zeros(9, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    assert len(held_out(uneven, 4 / 9, seed=0)[1].labels) == 4
    with pytest.raises(ebl.InputError, match="cannot be held out"):
        held_out(uneven, 0.0, seed=0)
    rare = Split(torch.zeros(25, 1, 1, 1, dtype=torch.uint8), torch.tensor([0] * 12 + [1] + [2] * 12))
    assert held_out(rare, 0.2, seed=0)[0].labels.unique().tolist() == [0, 1, 2]


def test_two_ranks_see_disjoint_halves_of_the_same_batch():
    data = load("fashion-mini")
    split = Split(data.train.images[:50], torch.arange(50))
    whole = list(Batches(split, data.spec, 16, 3, augment=True).epoch(2))
    parts = [list(Batches(split, data.spec, 16, 3, augment=True, rank=r, num_ranks=2).epoch(2)) for r in (0, 1)]
    for (x, y), (x0, y0), (x1, y1) in zip(whole, *parts, strict=True):
        for images, labels in ((x0, y0), (x1, y1)):
            rows = [y.tolist().index(label) for label in labels.tolist()]
            assert torch.equal(images, x[rows])
        assert sorted(y0.tolist() + y1.tolist()) == sorted(y.tolist())
