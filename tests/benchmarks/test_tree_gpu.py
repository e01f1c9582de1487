import pytest
import torch
from tests.benchmarks import bench_step_gpu, bench_tree_gpu


@pytest.mark.parametrize(
    ("benchmark_main", "name", "shown"),
    [(bench_tree_gpu.main, "tree_gpu", "token_ratio"), (bench_step_gpu.main, "step_gpu", "mfu")],
)
def test_a_toy_runs_on_the_cpu(tmp_path, monkeypatch, capsys, benchmark_main, name, shown):
    monkeypatch.chdir(tmp_path)
    benchmark_main(["--tiny"])
    assert (tmp_path / f"build/benchmarks/{name}_tiny.json").is_file()
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("benchmark_main", [bench_tree_gpu.main, bench_step_gpu.main])
def test_without_cuda_it_says_so(monkeypatch, benchmark_main):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        benchmark_main([])
