"""The study of sizes from scratch, in its fast form, and its table with known numbers."""

import pandas
import pytest

pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from studies import scratch


def rows(task, gains):
    """Numbers in which `halfway` is ahead of `start` by these gains, one for each seed."""
    return [
        {"task": task, "contender": name, "rate": 0.01, "seed": seed, "rows": "test", "size": size,
         "seconds": 1.0, "accuracy": 0.5 + (gain if name == "halfway" else 0.0) + 0.01 * seed}
        for seed, gain in enumerate(gains, 1)
        for name in scratch.CONTENDERS
        for size in scratch.SIZES
    ]  # fmt: skip


def test_the_rule_with_known_numbers():
    table = scratch.report(
        pandas.DataFrame([*rows("a", [0.01, 0.02, 0.03]), *rows("b", [0.01, -0.02, 0.03])])
    )
    assert "`halfway` minus `start`: +0.0200, standard error 0.0058: the rule holds." in table
    assert "`halfway` minus `start`: +0.0067, standard error 0.0145: the rule does not hold." in table
    assert "| halfway | 0.01 | 0.540 | 0.540 | 0.540 | 0.540 | 0.540 | 1 |" in table


def test_a_task_without_data_is_left_out(tmp_path, capsys):
    scratch.main(["--fast", "--out", str(tmp_path / "scratch"), "--data-dir", str(tmp_path)])
    assert "shakespeare is left out" in capsys.readouterr().out


def test_contenders_have_all_sizes():
    import torch

    torch.manual_seed(0)
    images = (torch.randn(40, 3, 16, 16), torch.arange(40) % 10)
    data = {"training": images, "validation": images, "test": images}
    for name in scratch.CONTENDERS:
        found = list(scratch.run("pictures", data, name, 0.001, 1, "test", 2))
        assert [row["size"] for row in found] == list(scratch.SIZES)
        assert all(0 <= row["accuracy"] <= 1 for row in found)
