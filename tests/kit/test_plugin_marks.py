"""The marks of the pytest plugin: places that are ruled out, what a test needs, gaps that are declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit_projects import Ids, Run

pytest_plugins = ["kit_projects"]

PLACES = "--xbridge=numpy,toylib:cpu,toylib:chip"


@pytest.mark.parametrize(
    ("mark", "where"),
    [
        ("only='numpy'", "numpy"),
        ("only=('numpy', 'toylib')", "numpy toylib:cpu toylib:chip"),
        ("only=['toylib:chip']", "toylib:chip"),
        ("only='toylib:chip:0'", "toylib:chip"),
        ("skip='toylib'", "numpy"),
        ("skip=('numpy', 'toylib:cpu')", "toylib:chip"),
        ("only='toylib', skip='toylib:cpu'", "toylib:chip"),
        ("skip={'torch:cuda', 'torch:cuda:7'}", "numpy toylib:cpu toylib:chip"),
        ("skip=['nolib:warp', 'toylib:chip:9']", "numpy toylib:cpu toylib:chip"),
        ("skip='numpy_readonly'", "numpy toylib:cpu toylib:chip"),
        ("", "numpy toylib:cpu toylib:chip"),
    ],
)
def test_a_place_that_the_mark_rules_out_is_not_made(ids: Ids, mark: str, where: str) -> None:
    test = f"""
        import pytest

        @pytest.mark.xbridge({mark})
        def test_x(backend): pass
    """
    assert ids(test, PLACES) == [f"test_x[{place}]" for place in where.split()]


def test_marks_of_a_module_a_class_and_a_test_all_count(ids: Ids) -> None:
    test = """
        import pytest

        pytestmark = pytest.mark.xbridge(skip="toylib:cpu")

        def test_module(backend): pass

        @pytest.mark.xbridge(only="toylib")
        class TestClass:
            def test_class(self, backend): pass

            @pytest.mark.xbridge(only=("numpy", "toylib:chip"))
            @pytest.mark.xbridge(skip="numpy")
            def test_test(self, backend): pass
    """
    assert sorted(ids(test, PLACES)) == [
        "TestClass::test_class[toylib:chip]",
        "TestClass::test_test[toylib:chip]",
        "test_module[numpy]",
        "test_module[toylib:chip]",
    ]


def test_a_test_that_is_left_with_no_place_says_so(run: Run) -> None:
    test = """
        import pytest

        @pytest.mark.xbridge(only="torch")
        def test_x(backend): pass
    """
    result = run(test, "--xbridge=numpy,toylib")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: its mark xbridge excludes all of numpy, toylib"])


@pytest.mark.parametrize(
    ("needs", "reasons"),
    [
        ("grad", ["numpy lacks grad: never: NumPy*", *["toylib:* lacks grad: never: toys do not*"] * 2]),
        (
            "device",
            ["numpy lacks device: never: *", "toylib:cpu lacks device: its only device here is cpu"],
        ),
        ("complex64", ["toylib:* lacks complex64: toys are real"] * 2),
        ("float64", []),
        ("readonly", []),
    ],
)
def test_a_place_that_lacks_what_is_needed_is_skipped_with_the_reason(
    run: Run, needs: str, reasons: list[str]
) -> None:
    test = f"""
        import pytest

        @pytest.mark.xbridge(needs=("bool", {needs!r}))
        def test_x(backend): pass
    """
    result = run(test, PLACES)
    result.assert_outcomes(passed=3 - len(reasons), skipped=len(reasons))
    result.stdout.fnmatch_lines([f"SKIPPED*: {reason}" for reason in reasons])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("only='nunpy'", "cannot find backend 'nunpy': *; try 'numpy'"),
        ("skip=('numpy', 'tourch:cuda')", "cannot find backend 'tourch': *; try 'torch'"),
        ("skip='toylib:chap'", "*'toylib:chap': the kinds of devices are cpu, chip, cuda, *; try toylib:cpu"),
        ("only='numpy:'", "cannot read device ''*"),
        ("only='torch:cuda:x'", "cannot read device 'cuda:x'*"),
        ("only=None", "*only=None: None is not a string; *; try only='numpy'"),
        ("only=3", "*only=3: 3 is not a string; *; try only='numpy'"),
        ("only=['torch', 3]", "*: 3 is not a string; *; try only='numpy'"),
        ("needs=[['grad']]", "*: [[]'grad'[]] is not a string; *; try needs='grad'"),
        ("needs='wings'", "cannot need 'wings': *; try one of *grad*device*float64*"),
        ("ony='numpy'", "*does not take ony; try only=, skip=, needs= or without="),
        ("'numpy'", "*does not take 'numpy'; try only=, skip=, needs= or without="),
    ],
)
def test_a_mark_with_unknown_words_is_an_error(run: Run, mark: str, message: str) -> None:
    test = f"""
        import pytest

        @pytest.mark.xbridge({mark})
        def test_x(backend): pass
    """
    result = run(test)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py::test_x: {message}"])


@pytest.mark.parametrize("arguments", ["", "own"], ids=["no fixture", "another's"])
def test_a_mark_that_would_do_nothing_is_an_error(run: Run, arguments: str) -> None:
    test = f"""
        import pytest

        @pytest.fixture
        def own(): pass

        @pytest.mark.xbridge(needs="grad")
        def test_x({arguments}): pass
    """
    result = run(test)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["test_it.py::test_x: cannot follow its mark xbridge: *; try naming backend *"]
    )


def test_a_mark_of_a_module_or_a_class_is_accepted_with_tests_that_need_none(ids: Ids) -> None:
    test = """
        import pytest

        pytestmark = pytest.mark.xbridge(skip="toylib")

        @pytest.mark.xbridge(only="numpy")
        class TestClass:
            def test_x(self): pass

        def test_y(): pass
    """
    assert ids(test, PLACES) == ["TestClass::test_x", "test_y"]


def test_the_marks_are_registered(run: Run) -> None:
    result = run("def test_x(): pass", "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.xbridge(*): *", "@pytest.mark.xbridge_promise(*): *"])


# -- gaps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "outcomes"),
    [("assert backend == 'numpy'", {"passed": 1, "xfailed": 1}), ("pass", {"passed": 1, "failed": 1})],
    ids=["declared", "stale"],
)
def test_a_declared_gap_must_fail(run: Run, body: str, outcomes: dict[str, int]) -> None:
    test = f"""
        from xbridge.testing._gaps import promise

        @promise("namespace")
        def test_x(backend): {body}
    """
    result = run(test, "--xbridge=numpy,barelib")
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(["*never: it is too small*"])


DRAWING = """
    import pytest
    from hypothesis import find, settings
    from xbridge.testing.strategies import arrays

    def is_drawn(layout_of):
        try:
            find(arrays("numpy", shapes=(2, 3)), layout_of, settings=settings(max_examples=300))
        except Exception:
            return False
        return True

    @pytest.mark.xbridge(without=['reversed'])
    def test_mark(backend):
        assert not is_drawn(lambda x: x.strides[0] < 0)
        assert not is_drawn(lambda x: not x.flags.aligned)
        assert find(arrays("numpy", layouts="reversed"), lambda x: True).strides[0] < 0

    def test_file():
        assert is_drawn(lambda x: x.strides[0] < 0)
        assert not is_drawn(lambda x: not x.flags.aligned)

    @pytest.mark.xbridge(without='reverse')
    def test_typo(backend): pass
"""


def test_a_layout_that_is_left_out_is_drawn_only_on_request(run: Run) -> None:
    result = run(DRAWING, "--xbridge=numpy", "-o", "xbridge_without=unaligned odd\\ strides")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*draw arrays without 'reverse': *try without='reversed'*"])
