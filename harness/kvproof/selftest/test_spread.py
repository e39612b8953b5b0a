"""A run spread over a Ray cluster of two nodes: the same results, also when a node is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof.options import WrongInput
from kvproof.report.results import read
from kvproof.report.summary import summarize
from kvproof.shards import merge
from kvproof.spread import spread, without

WHO = "faulty:tail_of_the_former_owner"
ASKED = ["conformance", "--impl", WHO, "--requirement", "BATCH", "--histories", "40"]
PARTS = 6


def test_own_options_are_taken_out() -> None:
    given = ["bench", "--ray", "auto", "--full", "--parts=3", "--results", "--x", "--impl", "plain"]
    assert without(given, "--ray", "--parts", "--results") == ["bench", "--full", "--impl", "plain"]


def test_without_ray_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(WrongInput, match="pip install"):
        spread("auto", 2, ASKED, tmp_path)


@pytest.fixture
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'kvproof[ray]'")
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    made = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


def _verdicts(paths: list[Path], folder: Path) -> tuple[dict[str, Any], int]:
    (path,), _ = merge(paths, folder)
    whole = read(path)
    assert len({c.id for c in whole.cases}) == len(whole.cases), "no case is counted twice"
    return summarize(whole).verdicts, whole.footer.cases


def test_two_nodes_give_the_results_of_one_also_when_one_is_lost(cluster: Any, tmp_path: Path) -> None:
    import ray

    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    alone = _verdicts(spread(cluster.address, PARTS, ASKED, tmp_path / "alone"), tmp_path)

    lost = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    killed: list[float] = []

    def kill() -> None:
        for _ in range(600):
            time.sleep(0.1)
            if ray.is_initialized() and ray.available_resources().get("CPU", 0) == 0:  # both are at work
                cluster.remove_node(lost, allow_graceful=False)
                killed.append(time.monotonic())
                return

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    again = _verdicts(spread(cluster.address, PARTS, ASKED, tmp_path / "again"), tmp_path)
    thread.join()
    assert killed, "a node was lost while it worked"
    assert again == alone
