"""What is saved comes back, and nothing is lost when saving fails."""

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.errors import ArgumentError, DataError


@pytest.mark.parametrize("name", ["own", "own.gz", "own.bz2"])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, name):
    rng = np.random.default_rng(0)
    A = scipy.sparse.random(40, 30, density=0.2, random_state=0, format="csr")
    A.data[:] = rng.normal(size=A.nnz) * 10.0 ** rng.integers(-300, 300, size=A.nnz)
    A.data[:5] = [0.0, -0.0, 1e15, 3.0, 5e-324]
    b = rng.normal(size=40)
    loaded = mast.data.load(mast.data.save(tmp_path / name, A, b), n_features=30, labels="raw")
    assert loaded.A.data.tobytes() == A.data.tobytes()
    assert loaded.A.indices.tolist() == A.indices.tolist()
    assert loaded.b.tobytes() == b.tobytes()
    assert [path.name for path in tmp_path.glob("*own*")] == [name]


def test_save_refuses(tmp_path):
    with pytest.raises(DataError, match="NaN and infinity"):
        mast.data.save(tmp_path / "own", [[np.nan]], [1])
    with pytest.raises(ArgumentError, match="they must agree"):
        mast.data.save(tmp_path / "own", [[1.0]], [1, 2])
    with pytest.raises(DataError, match="cannot be written"):
        mast.data.save(tmp_path / "absent" / "own", [[1.0]], [1])


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = mast.data.save(tmp_path / "own", [[1.0]], [1])
    before = path.read_bytes()

    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(DataError, match="No space left"):
        mast.data.save(path, [[2.0]], [1])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.glob("*own*")] == ["own"]
