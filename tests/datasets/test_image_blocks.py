"""Images in blocks: each rank has its block of every image, from memory, from a file, or from the
root; labels are whole.
"""

import numpy as np
import pytest

import mnpar
from mnpar.datasets import SubDataset, TupleDataset, scatter_image, shard_image

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((5, 2, 7, 6))
LABELS = np.arange(5, dtype=np.int32)
GRIDS = [(1, 1), (2, 2), (3, 1), (1, 4), (4, 2)]


def expected(grid):
    box = grid.block(IMAGES.shape[-2:])
    return IMAGES[:, :, box.start[0] : box.stop[0], box.start[1] : box.stop[1]]


def check(dataset, grid, labels=True):
    want = expected(grid)
    assert len(dataset) == 5
    for i in range(5):
        block, label = dataset[i] if labels else (dataset[i], None)
        np.testing.assert_array_equal(block, want[i])
        assert block.dtype == IMAGES.dtype
        assert not labels or label == i


SOURCES = {
    "an array": lambda: (IMAGES, None),
    "an array and labels": lambda: (IMAGES, LABELS),
    "a TupleDataset": lambda: (TupleDataset(IMAGES, LABELS), None),
    "a list of pairs": lambda: (list(zip(IMAGES, LABELS, strict=True)), None),
    "a part of a data set": lambda: (SubDataset(TupleDataset(IMAGES, LABELS), 0, 5), None),
    "a list of images": lambda: (list(IMAGES), None),
}
WITHOUT = ("an array", "a list of images")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_every_rank_cuts_its_block_and_keeps_the_labels(dims, source):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        images, labels = SOURCES[source]()
        check(shard_image(images, grid, labels), grid, source not in WITHOUT)

    mnpar.run(program, ranks=int(np.prod(dims)) + 1)  # one rank that the grid does not need


@pytest.mark.parametrize("in_memory", [True, False])
def test_from_a_file_only_the_block_is_read(tmp_path, in_memory):
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "t.npy", LABELS)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        part = shard_image(tmp_path / "x.npy", grid, str(tmp_path / "t.npy"), in_memory=in_memory)
        check(part, grid)
        return isinstance(part.datasets[0], np.memmap), part.datasets[0].nbytes

    for mapped, nbytes in mnpar.run(program, ranks=2):
        assert mapped is not in_memory
        assert nbytes < IMAGES.nbytes * 0.6


@pytest.mark.parametrize("source", [s for s in SOURCES if s != "an array and labels"])
@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.ranks(1, 2, 3)
def test_the_root_sends_each_rank_its_block(comm, source, root):
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    root = min(root, comm.size - 1)
    part = scatter_image(SOURCES[source]()[0] if comm.rank == root else None, grid, root)
    check(part, grid, source not in WITHOUT)


@pytest.mark.ranks(2)
def test_what_is_wrong_on_the_root_is_raised_on_every_rank(comm):
    grid = mnpar.SpatialGrid(comm, (2, 1))
    with pytest.raises(ValueError, match="need an axis of examples"):
        scatter_image(np.ones((3, 3)) if comm.rank == 0 else None, grid)
    with pytest.raises(ValueError, match="the images are None"):
        scatter_image(None, grid)
    with pytest.raises(ValueError, match="no rank of a communicator of 2"):
        scatter_image(None, grid, root=2)


def test_files_that_are_not_arrays_of_numbers_are_refused(tmp_path):
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no numbers here")
    for name in ("objects.npy", "text.npy"):
        with pytest.raises(ValueError, match=f"{name} is no .npy file of numbers"):
            shard_image(tmp_path / name, grid)


def test_labels_belong_to_the_images():
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
    with pytest.raises(ValueError, match="4 labels were given for 5 images that have none"):
        shard_image(IMAGES, grid, LABELS[:4])
    with pytest.raises(ValueError, match="labels of their own"):
        shard_image(TupleDataset(IMAGES, LABELS), grid, LABELS)
