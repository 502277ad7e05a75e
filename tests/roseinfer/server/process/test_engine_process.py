"""What the engine process inherits, and what it gets beside that."""

from __future__ import annotations

import pytest

from roseinfer.server.process.launch import HUGE_PAGES, KERNELS_KEPT, SPIN, environment


def test_huge_pages_and_bounded_spinning_unless_the_user_says_otherwise():
    assert environment({"PATH": "/bin"}) == {"PATH": "/bin", **HUGE_PAGES, **KERNELS_KEPT, **SPIN}


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, set()),
        ({"GOMP_SPINCOUNT": "5"}, set()),
        ({"LRU_CACHE_CAPACITY": "1024"}, set()),
        ({"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT"}),
    ],
)
def test_the_users_word_wins(given: dict[str, str], absent: set[str]):
    found = environment(given)
    assert given.items() <= found.items()
    added = HUGE_PAGES.keys() | KERNELS_KEPT.keys() | SPIN.keys()
    assert found.keys() == (given.keys() | added) - absent
