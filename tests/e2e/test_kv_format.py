"""An 8-bit KV cache: half the bytes travel, checksums hold, and batching changes nothing."""
import concurrent.futures

import pytest

from conftest import TINY, Cluster, running

PROMPTS = [[10 + (i * 7 + n) % 250 for i in range(n)] for n in (5, 33, 150, 290)]


def complete(cluster, prompt):
    status, answer = cluster.post("/v1/completions", {"prompt": prompt, "max_tokens": 30, "temperature": 0})
    assert status == 200, answer
    return answer["choices"][0]["text"]


@pytest.fixture(scope="module")
def small():
    yield from running(Cluster(model=TINY / "llama", sets=["kv_format=int8", "prefix_cache=off"]))


def test_int8_half_the_bytes(small):
    """The first request of a fresh cluster."""
    complete(small, PROMPTS[3])
    small.settle()
    # 290 tokens are 19 blocks of 16, in 2 layers of 2 heads of size 32: integers and two scales.
    assert small.own("decoded-1", "baton_kv_bytes_received_total") == 19 * 2 * 2 * (16 * 2 * 32 + 16 * 2 * 4)


def test_int8_one_answer(small):
    one_by_one = [complete(small, p) for p in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(lambda p: complete(small, p), PROMPTS * 2))
    assert at_once == one_by_one * 2
    small.settle()
    assert small.sum("baton_kv_checksum_errors_total") == 0
