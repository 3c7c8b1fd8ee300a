"""The data sets MAST knows by name: where they come from, their size and, where known, their checksum."""

from __future__ import annotations

from dataclasses import dataclass

COLLECTION = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class DataSet:
    """A set of the LIBSVM collection of binary classification data.

    `features` is the number the collection states. The largest index a file uses may be
    smaller: no row of a1a has any of the last four of its 123 features.
    """

    name: str
    rows: int
    features: int
    packing: str = ""  # the suffix of the published file: "", ".bz2"
    sha256: str | None = None  # of the unpacked text

    @property
    def address(self) -> str:
        """Where the collection offers the file."""
        return COLLECTION + self.name + self.packing


_SHA256 = {
    "a1a": "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e",
    "a5a": "5cb3a6603de0a0eb43afcdd45b1820c71ee7f20da1c09f054696bb71cbc45ad8",
    "w8a": "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2",
}

# name, rows, rows of the test set ("name.t"; 0: there is none), features, packing
_TABLE: list[tuple[str, int, int, int, str]] = [
    ("a1a", 1_605, 30_956, 123, ""),
    ("a2a", 2_265, 30_296, 123, ""),
    ("a3a", 3_185, 29_376, 123, ""),
    ("a4a", 4_781, 27_780, 123, ""),
    ("a5a", 6_414, 26_147, 123, ""),
    ("a6a", 11_220, 21_341, 123, ""),
    ("a7a", 16_100, 16_461, 123, ""),
    ("a8a", 22_696, 9_865, 123, ""),
    ("a9a", 32_561, 16_281, 123, ""),
    ("w1a", 2_477, 47_272, 300, ""),
    ("w2a", 3_470, 46_279, 300, ""),
    ("w3a", 4_912, 44_837, 300, ""),
    ("w4a", 7_366, 42_383, 300, ""),
    ("w5a", 9_888, 39_861, 300, ""),
    ("w6a", 17_188, 32_561, 300, ""),
    ("w7a", 24_692, 25_057, 300, ""),
    ("w8a", 49_749, 14_951, 300, ""),
    ("australian", 690, 0, 14, ""),
    ("breast-cancer", 683, 0, 10, ""),
    ("cod-rna", 59_535, 0, 8, ""),
    ("covtype.libsvm.binary", 581_012, 0, 54, ".bz2"),
    ("covtype.libsvm.binary.scale", 581_012, 0, 54, ".bz2"),
    ("diabetes", 768, 0, 8, ""),
    ("german.numer", 1_000, 0, 24, ""),
    ("gisette_scale", 6_000, 1_000, 5_000, ".bz2"),
    ("heart", 270, 0, 13, ""),
    ("ijcnn1", 49_990, 91_701, 22, ".bz2"),
    ("ionosphere_scale", 351, 0, 34, ""),
    ("mushrooms", 8_124, 0, 112, ""),
    ("news20.binary", 19_996, 0, 1_355_191, ".bz2"),
    ("phishing", 11_055, 0, 68, ""),
    ("rcv1_train.binary", 20_242, 0, 47_236, ".bz2"),
    ("real-sim", 72_309, 0, 20_958, ".bz2"),
    ("skin_nonskin", 245_057, 0, 3, ""),
    ("sonar_scale", 208, 0, 60, ""),
    ("splice", 1_000, 2_175, 60, ""),
]


def _sets() -> dict[str, DataSet]:
    sets = {}
    for name, rows, test_rows, features, packing in _TABLE:
        sets[name] = DataSet(name, rows, features, packing, _SHA256.get(name))
        if test_rows:
            sets[name + ".t"] = DataSet(name + ".t", test_rows, features, packing)
    return sets


SETS: dict[str, DataSet] = _sets()
