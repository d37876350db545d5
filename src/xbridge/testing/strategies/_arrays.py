"""Strategies of arrays of any backend.

Options that were given as strategies are drawn first. Open options are then chosen to fit them. Every example
makes the same number of choices, so that shrinking does not prefer an example with fewer.
"""

from __future__ import annotations

from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hypothesis import note, reject
from hypothesis import strategies as st

from xbridge.errors import CallError
from xbridge.extend import DTYPES, HOST, is_inexact
from xbridge.testing.samples.lookup import make_sample
from xbridge.testing.strategies._spec import MOST_STATES, SHAPES, ArraySpec
from xbridge.testing.strategies._values import bounds_in, draw_contents, draw_elements, numbers, quieten

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, Unpack

    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing.samples import Sample
    from xbridge.testing.strategies._spec import Asked, Devices, Dtypes, Layouts, Shapes
    from xbridge.testing.strategies._values import Elements

P = ParamSpec("P")
T = TypeVar("T")


def _plural(make: Callable[P, T]) -> Callable[P, T]:
    """Advise on an option that is written as in other strategies, such as `dtype`."""

    @wraps(make)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        for word in ("dtype", "shape", "layout", "device"):
            if word in options:
                asked = f"{word}s={options[word]!r}"
                raise CallError.build(f"draw arrays with {word}=", "an option may be a strategy", asked)
        return make(*args, **options)

    return checked


@_plural
def arrays(  # noqa: PLR0913 -- independent options
    backend: str,
    *,
    dtypes: Dtypes = None,
    shapes: Shapes = None,
    layouts: Layouts = None,
    devices: Devices = None,
    writable: bool | None = None,
    requires_grad: Literal["any"] | bool | None = None,
    elements: Elements = None,
    nan: Literal["quiet", "any"] = "quiet",
) -> st.SearchStrategy[Array]:
    """Strategy of arrays of a backend, in every memory layout that they can have.

    Each option is a value or a strategy of values. An option that is left open is chosen to fit the others.
    A value is checked when the strategy is made. Tensors of torch's inference mode are drawn only if
    `layouts` names them: torch refuses them beside tensors that require grad.

    Parameters
    ----------
    backend : str
        The name of a backend.
    dtypes : str or dtype object, list of them, or strategy, optional
        See `dtypes`. Of a list, those that the backend has are drawn, such as float32 alone for JAX without
        x64.
    shapes : tuple of int or int, or strategy, optional
        `hypothesis.extra.numpy.array_shapes` makes more. By default they are small, 0-d and empty included.
    layouts : str, or strategy, optional
        Names of layouts, see `layouts`.
    devices : str or device object, or strategy, optional
        See `devices`. An array with a layout of the host alone is moved, which may change its layout.
    writable : bool, optional
        True for writable arrays, False for read-only ones.
    requires_grad : bool or "any", optional
        True for arrays that autograd tracks, False for those that it does not, ``"any"`` for both. By
        default arrays are tracked only if `layouts` names a tracked layout.
    elements : strategy of numbers, or tuple of two numbers, optional
        The elements; two numbers are bounds. By default they are any numbers: NaNs, signed zeros,
        infinities, subnormals, and the ends of each range. A strategy is used for every dtype that is
        drawn. An element that a dtype does not have is an error, so give `dtypes` with it.
    nan : {"quiet", "any"}
        By default every NaN is the quiet one without a payload, whose comparison does not warn. ``"any"``
        draws NaNs of all bit patterns, for tests of bits.

    Returns
    -------
    SearchStrategy of array
        Every array in new memory. It shrinks to zeros of few axes in the simplest layout.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        There is no such backend, or it is not installed.
    DTypeError, DeviceError, OptionError
        The backend has no such dtype, device or layout, or no array fits all options. While drawing: an
        element is not a value of the dtype.
    GradientError
        ``requires_grad=True`` for a backend or a dtype without gradients.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(arrays("numpy"), lambda x: True)
    array(0.)
    >>> find(arrays("numpy", shapes=(2, 2), dtypes="float32"), lambda x: (x != x).any())
    array([[nan,  0.],
           [ 0.,  0.]], dtype=float32)
    """
    return _samples(ArraySpec(**locals())).map(attrgetter("array"))


@_plural
def host_arrays(
    *,
    dtypes: Dtypes = None,
    shapes: Shapes = None,
    layouts: Layouts = None,
    writable: bool | None = None,
    elements: Elements = None,
    nan: Literal["quiet", "any"] = "quiet",
) -> st.SearchStrategy[HostArray]:
    """Strategy of NumPy arrays, through which host memory is exchanged: `arrays` of ``"numpy"``.

    Parameters
    ----------
    dtypes, shapes, layouts, writable, elements, nan
        As for `arrays`.

    Returns
    -------
    SearchStrategy of numpy.ndarray
        Every array in new memory.

    Raises
    ------
    XBridgeError
        As for `arrays`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(host_arrays(layouts="reversed", elements=(1, 5)), lambda x: True).strides
    (-8,)
    """
    return arrays(HOST, **locals())


def samples(backend: str, **asked: Unpack[Asked]) -> st.SearchStrategy[Sample]:
    """Strategy of `Sample`s with every property; the options are those of `arrays`."""
    return _samples(ArraySpec(backend, everything=True, **asked))


@st.composite
def _samples(draw: st.DrawFn, spec: ArraySpec) -> Sample:
    def given(option: Any) -> Any:
        return draw(option) if isinstance(option, st.SearchStrategy) else option

    def pick(options: list[T], most: int) -> T:
        return options[draw(numbers(most)) % len(options)] if most > 1 else options[0]

    left_out, places = spec.left_out(), spec.backend.devices()
    device = given(spec.devices) or pick(list(places), len(places))
    dtype, layout = given(spec.dtypes), given(spec.layouts)
    if isinstance(spec.shapes, st.SearchStrategy):
        shape = draw(spec.shapes)
    else:
        usual = spec.usual(dtype, layout, device, left_out) or reject()
        shape = pick(usual, len(SHAPES) if spec.shapes is None else 1)
    fitting = spec.fitting(dtype, layout, shape, device, left_out) or reject()
    name = pick(list(fitting), 1 if layout else len(spec.cases))
    word = pick(fitting[name], 1 if dtype else len(DTYPES))
    state = pick(spec.states(name, word, device, left_out), MOST_STATES)
    if isinstance(spec.elements, st.SearchStrategy):
        values = draw_elements(draw, word, shape, spec.elements)
    else:
        values = draw_contents(draw, word, shape, bounds_in(word, spec.elements))
        if spec.quiet_nan and is_inexact(word):
            quieten(values)
    sample = make_sample(spec.backend.name, name, values, device, state)
    note(_Note(spec.backend, sample))
    return sample


class _Note:
    """What the printed elements of an array do not show, read only if it is printed."""

    def __init__(self, backend: Backend, sample: Sample) -> None:
        self._facts = backend, sample

    def __repr__(self) -> str:
        backend, sample = self._facts
        info, layout = backend.array_info(sample.array), backend.memory_layout(sample.array)
        flags = {"not writable": not sample.writable, "requires grad": sample.tracked}
        words = [f"{info.dtype} {info.shape} on {info.device}", sample.layout]
        words += [word for word, is_so in flags.items() if is_so]
        return f"{backend.name} array: {', '.join(words)}, strides {layout.strides} bytes"
