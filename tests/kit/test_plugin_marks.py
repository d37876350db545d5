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
        ("skip=['nolib:warp', 'toylib:chip:9']", "numpy toylib:cpu toylib:chip"),
        ("skip='numpy_readonly'", "numpy toylib:cpu toylib:chip"),
        ("", "numpy toylib:cpu toylib:chip"),
    ],
)
def test_mark__only_and_skip(ids: Ids, mark: str, where: str) -> None:
    """A test is not collected for the backends and devices that only= and skip= exclude."""
    test = f"""
        @pytest.mark.xbridge({mark})
        def test_x(backend): pass
    """
    assert ids(test, PLACES) == [f"test_x[{place}]" for place in where.split()]


def test_mark__of_module_class_and_test_combine(ids: Ids) -> None:
    """The marks of a module, a class and a test all apply, to the tests that use the fixtures."""
    test = """
        pytestmark = pytest.mark.xbridge(skip="toylib:cpu")

        def test_module(backend): pass

        def test_none(): pass

        @pytest.mark.xbridge(only="toylib")
        class TestClass:
            def test_class(self, backend): pass

            def test_none(self): pass

            @pytest.mark.xbridge(only=("numpy", "toylib:chip"))
            @pytest.mark.xbridge(skip="numpy")
            def test_test(self, backend): pass
    """
    assert sorted(ids(test, PLACES)) == [
        "TestClass::test_class[toylib:chip]",
        "TestClass::test_none",
        "TestClass::test_test[toylib:chip]",
        "test_module[numpy]",
        "test_module[toylib:chip]",
        "test_none",
    ]


def test_mark__that_excludes_every_backend(run: Run) -> None:
    """A test that its mark excludes everywhere is skipped, with the reason."""
    test = """
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
    ],
)
def test_mark__needs(run: Run, needs: str, reasons: list[str]) -> None:
    """A backend or device that lacks what needs= names is skipped, with the reason."""
    test = f"""
        @pytest.mark.xbridge(needs=("bool", {needs!r}))
        def test_x(backend): pass
    """
    result = run(test, PLACES)
    result.assert_outcomes(passed=3 - len(reasons), skipped=len(reasons))
    result.stdout.fnmatch_lines([f"SKIPPED*: {reason}" for reason in reasons])


def test_mark__xfail(run: Run) -> None:
    """A test is expected to fail with the backends that have a reason, and with no other."""
    test = """
        @pytest.mark.xbridge(xfail={"toylib:chip": "chips are slow"})
        def test_x(backend, device): assert device == "cpu"
    """
    result = run(test, PLACES, "-rx")
    result.assert_outcomes(passed=2, xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL *toylib:chip* - chips are slow"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("only='nunpy'", "cannot find backend 'nunpy': *; try 'numpy'"),
        ("skip=('numpy', 'tourch:cuda')", "cannot find backend 'tourch': *; try 'torch'"),
        ("skip='toylib:chap'", "*'toylib:chap': the kinds of devices are cpu, chip, cuda, *; try toylib:cpu"),
        ("only='numpy:'", "cannot read device ''*"),
        ("only=None", "*only=None: None is not a string; *; try only='numpy'"),
        ("needs=[['grad']]", "*: [[]'grad'[]] is not a string; *; try needs='grad'"),
        ("needs='wings'", "cannot need 'wings': *; try one of *grad*device*float64*"),
        ("ony='numpy'", "*does not take ony; try only=, skip=, needs=, without= or xfail="),
        ("'numpy'", "*does not take 'numpy'; try only=, skip=, needs=, without= or xfail="),
        ("xfail='torch'", "*xfail='torch': it is a dict of backends and reasons; try xfail={'numpy': *"),
        ("xfail={'tourch': 'no'}", "cannot find backend 'tourch': *; try 'torch'"),
    ],
)
def test_mark__unknown_words(run: Run, mark: str, message: str) -> None:
    """Unknown backends, devices, features and keywords in a mark are errors with a suggestion."""
    test = f"""
        @pytest.mark.xbridge({mark})
        def test_x(backend): pass
    """
    result = run(test)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py::test_x: {message}"])


@pytest.mark.parametrize("arguments", ["", "own"], ids=["no fixture", "another's"])
def test_mark__without_effect(run: Run, arguments: str) -> None:
    """A mark on a test that uses none of the fixtures is an error."""
    test = f"""
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


# -- gaps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "outcomes"),
    [("assert backend == 'numpy'", {"passed": 1, "xfailed": 1}), ("pass", {"passed": 1, "failed": 1})],
    ids=["declared", "stale"],
)
def test_promise__declared_gap_has_to_fail(run: Run, body: str, outcomes: dict[str, int]) -> None:
    """A test of a gap that a backend declares has to fail, and is reported if it passes."""
    test = f"""
        from xbridge.testing._parametrize import promise

        @promise("namespace")
        def test_x(backend): {body}
    """
    result = run(test, "--xbridge=numpy,barelib")
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(["*never: it is too small*"])


DRAWING = """
    from random import Random

    from hypothesis import find, settings
    from hypothesis.errors import NoSuchExample
    from xbridge.testing.strategies import arrays

    LIMITS = settings(max_examples=1000, database=None)

    def is_drawn(layout_of):
        try:
            find(arrays("numpy", shapes=(2, 3)), layout_of, settings=LIMITS, random=Random(0))
        except NoSuchExample:
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


@pytest.mark.slow
def test_mark__without_layouts(run: Run) -> None:
    """A layout that the mark or the configuration leaves out is drawn only on request."""
    result = run(DRAWING, "--xbridge=numpy", "-o", "xbridge_without=unaligned odd\\ strides")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*draw arrays without 'reverse': *try without='reversed'*"])
