"""The embedded dataset and the batches made of it."""

import dataclasses

import numpy as np
import pytest
import torch

import ebl
import ebl.data
from ebl.data import SPECS, Split, load
from ebl.data.batches import Batches


def test_the_embedded_data_are_whole_and_balanced():
    data = load("fashion-mini")
    assert data.train.images.shape == (5000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.bincount().tolist() == [500] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    assert data.train.majority_error() == pytest.approx(0.9)
    pixels = data.train.images.double() / 255  # a sample of Fashion-MNIST has nearly its mean and std
    assert float(pixels.mean()) == pytest.approx(0.2860, abs=0.01)
    assert float(pixels.std()) == pytest.approx(0.3530, abs=0.01)


def test_damaged_embedded_data_are_refused(monkeypatch):
    monkeypatch.setitem(ebl.data.EMBEDDED, "fashion-mini", ("fashion_mini.npz", "0" * 64))
    with pytest.raises(ebl.InputError, match="damaged"):
        load("fashion-mini")


def test_normalisation_is_the_papers_table():
    assert (SPECS["mnist"].mean, SPECS["mnist"].std) == ((0.1307,), (0.3081,))
    assert (SPECS["fashion-mnist"].mean, SPECS["fashion-mnist"].std) == ((0.2860,), (0.3530,))
    assert SPECS["svhn"].mean == (0.4377, 0.4438, 0.4728)
    assert SPECS["svhn"].std == (0.1980, 0.2010, 0.1970)
    assert SPECS["cifar10"].mean == (0.4914, 0.4822, 0.4465)
    assert SPECS["cifar10"].std == pytest.approx((0.6069, 0.5982, 0.6030))
    assert SPECS["cifar100"].mean == (0.5071, 0.4867, 0.4408)
    assert SPECS["cifar100"].std == (0.2675, 0.2565, 0.2761)
    assert {name for name, spec in SPECS.items() if spec.flip} == {"fashion-mini", "fashion-mnist", "cifar10", "cifar100"}


def colour_split(count: int = 10) -> Split:
    g = torch.Generator().manual_seed(0)
    return Split(torch.randint(256, (count, 3, 8, 8), generator=g).to(torch.uint8), torch.arange(count) % 3)


def test_padding_comes_before_normalisation():
    spec = dataclasses.replace(SPECS["cifar10"], pad=1)
    x, _ = next(Batches(colour_split(), spec, 4).in_order())
    assert x.shape == (4, 3, 10, 10)
    assert x.is_contiguous(memory_format=torch.channels_last)
    mean, std = np.array(spec.mean), np.array(spec.std)
    np.testing.assert_allclose(x[0, :, 0, 0], (0 - mean) / std, rtol=1e-6)
    pixel = colour_split().images[2, :, 4, 5].numpy() / 255
    np.testing.assert_allclose(x[2, :, 5, 6], (pixel - mean) / std, rtol=0, atol=1e-6)


def test_augmentation_is_a_crop_of_the_edge_padded_image_flipped_or_not():
    images, spec = colour_split(40).images, dataclasses.replace(SPECS["cifar10"], crop=2)
    plain = dataclasses.replace(spec, mean=(0.0,) * 3, std=(1 / 255,) * 3)  # leaves the pixels as they are
    batches = list(Batches(Split(images, torch.arange(40)), plain, 16, augment=True).epoch(0))
    found = torch.cat([x for x, _ in batches])[torch.cat([y for _, y in batches]).argsort()]
    seen = set()
    for before, after in zip(images, found, strict=True):
        padded = np.pad(before.numpy(), ((0, 0), (2, 2), (2, 2)), mode="edge")
        crops = {
            (i, j, f): padded[:, i : i + 8, j : j + 8][:, :, :: 1 - 2 * f] for i in range(5) for j in range(5) for f in (0, 1)
        }
        matches = [key for key, crop in crops.items() if np.array_equal(crop, after.round().numpy())]
        assert matches
        seen.add(matches[0])
    assert {f for _, _, f in seen} == {0, 1}
    assert {i for i, _, _ in seen} == {j for _, j, _ in seen} == {0, 1, 2, 3, 4}


def test_batches_depend_on_seed_epoch_and_step_alone():
    def epoch(seed: int, number: int, first: int = 0):
        return list(Batches(colour_split(), SPECS["cifar10"], 4, seed, augment=True).epoch(number, first))

    whole = epoch(0, 1)
    assert [len(y) for _, y in whole] == [4, 4, 2]  # the last, short batch is kept
    for (x, y), (x2, y2) in zip(epoch(0, 1, first=1), whole[1:], strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
    assert not torch.equal(epoch(0, 2)[0][0], whole[0][0])
    assert not torch.equal(epoch(1, 1)[0][0], whole[0][0])


def test_an_epoch_holds_every_example_once():
    split = Split(colour_split().images, torch.arange(10))
    labels = torch.cat([y for _, y in Batches(split, SPECS["cifar10"], 3).epoch(5)])
    assert sorted(labels.tolist()) == list(range(10))


def test_unknown_datasets_are_named():
    with pytest.raises(ebl.InputError, match="did you mean cifar100"):
        load("cifar-100")
