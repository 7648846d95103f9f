"""Drawings and images as the network reads them: placed as MNIST's, scaled and ordered as in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from indrnn.tasks.pixels import Pixels, PixelsRecipe

from .programs import in_node, needs_node

PLACE = """
const images = given.map((strokes) => Array.from(Digits.place(strokes)));
console.log(JSON.stringify(images));
"""
SEQUENCE = "console.log(JSON.stringify(given.map(([image, options]) => Array.from(Digits.sequence(image, options)))));"


@needs_node
def test_a_drawing_is_placed_as_mnist_places_digits() -> None:
    """In any place and size: fitted into 20 × 20 pixels, the centre of mass in the middle to half a pixel."""
    hook = [(0.0, 0.0), (0.5, 30.0), (8.0, 40.0), (14.0, 33.0)]
    drawings = [
        [[[x * scale + dx, y * scale + dy] for x, y in hook]]
        for scale, dx, dy in ((1, 0, 0), (5, 50, 20), (0.1, -3, 7))
    ]
    wide = [[[0, 5], [100, 5]], [[20, 0], [20, 10]]]
    images = torch.tensor(in_node(PLACE, [*drawings, wide])).view(4, 28, 28).double()
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[0], images[2])
    at = torch.arange(28) + 0.5
    for image in images:
        assert image.max() == 255
        rows, columns = image.sum(1), image.sum(0)
        for mass in (rows, columns):
            assert abs(float((mass * at).sum() / mass.sum()) - 14) <= 0.5
        longest = max(int((mass > 0).sum()) for mass in (rows, columns))
        assert 19 <= longest <= 22  # 20, and grey edges


@needs_node
def test_nothing_and_a_dot() -> None:
    nothing, dot = in_node(PLACE, [[], [[[3, 4]]]])
    assert not any(nothing)
    assert max(dot) == 255
    assert sum(value > 0 for value in dot) < 20


@needs_node
@pytest.mark.parametrize("options", [{}, {"permuted": True}, {"shrink": 2}, {"shrink": 4, "permuted": True}], ids=str)
def test_images_become_the_sequences_of_training(options: dict[str, Any], tmp_path: Path) -> None:
    images = torch.randint(0, 256, (5, 28, 28), dtype=torch.uint8)
    labels = torch.zeros(5, dtype=torch.uint8)
    task = Pixels((images, labels), (images, labels), PixelsRecipe(validation=1, permutation_seed=3, **options))
    expected = task.batch_of("test", torch.arange(5)).inputs
    given = PixelsRecipe(permutation_seed=3, data_dir=tmp_path, **options).samples(torch.nn.Identity()).input
    options = {"shrink": given["shrink"], "order": given["order"]}
    found = in_node(SEQUENCE, [[image.flatten().tolist(), options] for image in images])
    assert torch.equal(torch.tensor(found), expected.squeeze(-1).t())
