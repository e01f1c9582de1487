import pytest
import torch
from tests.benchmarks.bench_tree_gpu import main


def test_a_toy_runs_on_the_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["--tiny"])
    assert (tmp_path / "build/benchmarks/tree_gpu_tiny.json").is_file()
    assert "token_ratio" in capsys.readouterr().out


def test_without_cuda_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        main([])
