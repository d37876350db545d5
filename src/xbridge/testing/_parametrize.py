"""The backends and devices that every test with the fixture `backend` runs with, and the fixtures.

Both come from the registry, so that tests do not list backends by hand. If a backend that the caller names is
missing, the run ends before its first test. Combinations that a mark excludes are not made. If a library
lacks a feature that a test needs, the test is skipped. If a backend declares a gap, the test of that feature
must fail, so that a gap that closes is noticed, and so is one that never was. A test skips if it can see the
feature neither kept nor broken, as with a library whose other devices are not in this machine.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from xbridge import Device, asarray, is_available, known_backends, native_device
from xbridge.errors import DeviceError, OptionError, XBridgeError
from xbridge.extend import DTYPES, get_backend
from xbridge.protocol import FEATURES
from xbridge.testing import _without
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from xbridge.protocol import Backend, Gap

_ALL = "all"
"""The word for every backend and device that is present."""

_EMULATED = {"torch:emu": "xbridge.testing.emulated"}
"""The emulated devices, with the module that installs each."""

_KINDS = ("cpu", "cuda", "xpu", "mps", "tpu", "rocm", "emu")
"""Kinds of devices that a mark may always name, because another machine may have them."""

_NEEDS = {"grad": "autograd", "device": "devices", **{word: word for word in (*FEATURES, *DTYPES)}}
"""The words of `needs=`, and the feature or dtype that each means."""


MARK = "xbridge_promise"
"""The name of the mark, to be registered by the plugin."""


class BackendDevice(NamedTuple):
    """A backend and the device for its arrays."""

    id: str
    """The word that selected it, which pytest shows after the name of the test."""
    backend: str
    device: Device


class Rule(NamedTuple):
    """The content of one mark."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    needs: tuple[str, ...]
    without: tuple[str, ...]
    xfail: dict[str, str]
    """The reason of an expected failure, by the backend, or the backend with its device."""

    def includes(self, here: BackendDevice) -> bool:
        """Return True if the mark does not exclude the combination."""
        chosen = not self.only or any(_matches(word, here) for word in self.only)
        return chosen and not any(_matches(word, here) for word in self.skip)


_PLACES = pytest.StashKey[tuple[BackendDevice, ...]]()


def places(config: pytest.Config) -> tuple[BackendDevice, ...]:
    """Return every backend and device of the run, in the order of the option."""
    if _PLACES not in config.stash:
        try:
            asked = _requested_backends(config)
            for library, word in pairwise(asked):
                if word in _KINDS:
                    raise OptionError.build(f"run with {word}", "it is a device", f"{library}:{word}")
            for name, emulated in (word.split(":")[:2] for word in asked if ":" in word):
                if path := _EMULATED.get(f"{name}:{emulated}"):  # before devices are listed
                    get_backend(name)  # raises if the library is missing
                    import_module(path).install()
            found = [here for word in asked for here in _places(word)]
        except XBridgeError as error:
            where = "--xbridge" if config.getoption("xbridge") else "xbridge in the configuration file"
            raise pytest.UsageError(f"{where}: {error}") from error
        config.stash[_PLACES] = tuple(dict.fromkeys(found))
    return config.stash[_PLACES]


def place(word: str) -> BackendDevice:
    """Return the backend and device of a word; without a device, one that is not the default, if any."""
    name, colon, kind = word.partition(":")
    module = get_backend(name)
    here = module.devices()
    if not colon:
        return BackendDevice(word, name, (*here[1:], here[0])[0])
    wanted = Device(kind)
    fit = [device for device in here if wanted in (device, device.kind)]
    if not fit:
        raise DeviceError.build(
            f"test {word!r}", f"the devices of {name} here are {', '.join(here)}", f"{name}:{here[-1]}"
        )
    return BackendDevice(word, name, fit[0])


def params(function: pytest.Item) -> list[ParameterSet]:
    """Return a parameter for each place that no mark excludes; if none is left, a skipped one."""
    everywhere = places(function.config)
    try:
        rules = [_rule(mark) for mark in function.iter_markers("xbridge")]
    except XBridgeError as error:
        pytest.fail(f"{function.nodeid}: {error}", pytrace=False)
    promises = [mark.args[0] for mark in function.iter_markers(MARK)]
    found = []
    for here in everywhere:
        if all(rule.includes(here) for rule in rules):
            lacks = [reason for rule in rules for need in rule.needs if (reason := _lack(here, need))]
            marks = [pytest.mark.skip(reason=reason) for reason in lacks]
            gaps = get_backend(here.backend).gaps
            marks += [expected_failure(gaps[promise]) for promise in promises if promise in gaps]
            expected = [(word, why) for rule in rules for word, why in rule.xfail.items()]
            marks += [pytest.mark.xfail(reason=why) for word, why in expected if _matches(word, here)]
            found.append(pytest.param(here, id=here.id, marks=marks))
    if not found:
        ids = ", ".join(here.id for here in everywhere)
        skipped = pytest.mark.skip(reason=f"its mark xbridge excludes all of {ids}")
        found = [pytest.param(None, id="none", marks=skipped)]
    return found


def left_out(function: pytest.Item) -> list[str]:
    """Return the layouts and properties that the marks of a test and the configuration file leave out."""
    words: list[str] = list(function.config.getini("xbridge_without"))
    for mark in function.iter_markers("xbridge"):
        words += _rule(mark).without
    backends = {here.backend for here in places(function.config)}
    _without.check(words, [name for backend in backends for name in samples_of(backend).cases])
    return words


def namespace(backend: str) -> ModuleType:
    """Return the array API namespace of a backend; skip the test if the backend declares the gap."""
    module = get_backend(backend)
    if "namespace" in module.gaps:
        pytest.skip(f"{backend} has no namespace: {module.gaps['namespace']}")
    return module.namespace(asarray(0.0, backend=backend))


def device_of_namespace(here: BackendDevice) -> Any:
    """Return a device as the functions of the namespace take it: by its name, or an object of the library."""
    module, x = get_backend(here.backend), asarray(0.0, backend=here.backend, device=here.device)
    native = native_device(x)
    if "namespace" not in module.gaps and module.device_name(native) is not None:
        try:
            module.namespace(x).asarray(0.0, device=here.device)
        except ValueError:  # JAX and array-api-strict know no names
            return native
    return here.device


def header(config: pytest.Config) -> str:
    """Return a line with the backends of the run, their versions and devices."""
    modules = [get_backend(name) for name in dict.fromkeys(here.backend for here in places(config))]
    shown = [
        f"{' '.join((module.name, *_version(module)))} ({', '.join(module.devices())})" for module in modules
    ]
    installed = config.pluginmanager.list_plugin_distinfo()
    own = [dist.version for _, dist in installed if dist.project_name == "xbridge-array"]
    return f"{' '.join(('xbridge', *own))}: {', '.join(shown)}"


def _requested_backends(config: pytest.Config) -> tuple[str, ...]:
    """Return the backends of the command line, else of the configuration file, else all available ones."""
    given: list[str] = config.getoption("xbridge") or config.getini("xbridge")
    if not given:
        return tuple(filter(is_available, known_backends()))
    words = [word.strip() for part in given for word in part.split(",") if word.strip()]
    if not words:
        raise OptionError.build("choose backends", "no name is given", "--xbridge=all")
    return tuple(words)


def _places(word: str) -> Iterator[BackendDevice]:
    if word != _ALL:
        yield place(word)
        return
    for name in filter(is_available, known_backends()):
        kinds = dict.fromkeys(device.kind for device in get_backend(name).devices())
        yield from map(place, [name] if len(kinds) == 1 else [f"{name}:{kind}" for kind in kinds])


def _matches(word: str, here: BackendDevice) -> bool:
    """Return True if a word of a mark names the backend, or the backend with its device."""
    name, device = here.backend, here.device
    return word in (name, f"{name}:{device.kind}", f"{name}:{device}")


_EXAMPLES = {"only": "numpy", "skip": "numpy", "needs": "grad", "without": "neg"}
"""The options of the mark that take words, with an example of each."""


def _rule(mark: pytest.Mark) -> Rule:
    """Read a mark. An unknown word raises, because it would silently exclude nothing."""
    strange = [*map(repr, mark.args), *(word for word in mark.kwargs if word not in Rule._fields)]
    if strange:
        raise OptionError.build(
            "read the mark xbridge",
            f"it does not take {strange[0]}",
            "only=, skip=, needs=, without= or xfail=",
        )
    xfail = mark.kwargs.get("xfail", {})
    if not isinstance(xfail, dict):
        asked, reason = f"read the mark xbridge with xfail={xfail!r}", "it is a dict of backends and reasons"
        raise OptionError.build(asked, reason, "xfail={'numpy': 'it rounds'}")
    words: dict[str, tuple[str, ...]] = {}
    for option, example in _EXAMPLES.items():
        given = mark.kwargs.get(option, ())
        words[option] = tuple(given) if isinstance(given, tuple | list | set | frozenset) else (given,)
        for word in words[option]:
            if not isinstance(word, str):
                asked = f"read the mark xbridge with {option}={given!r}"
                reason = f"{word!r} is not a string; it takes one or a list of them"
                raise OptionError.build(asked, reason, f"{option}={example!r}")
    for word in (*words["only"], *words["skip"], *xfail):
        _check(word)
    for word in words["needs"]:
        if word not in _NEEDS:
            reason, hint = "it is not a feature or a dtype", f"one of {', '.join(_NEEDS)}"
            raise OptionError.build(f"need {word!r}", reason, hint)
    return Rule(**words, xfail=xfail)


def _check(word: str) -> None:
    """Raise if a word names an unknown backend or device; a missing library may have any device."""
    name, colon, device = word.partition(":")
    if name not in known_backends():
        get_backend(name)  # raises, with a similar name
    if colon and Device(device).kind not in _KINDS and is_available(name):
        kinds = dict.fromkeys((*(here.kind for here in get_backend(name).devices()), *_KINDS))
        if Device(device).kind not in kinds:
            raise DeviceError.build(
                f"read the mark xbridge with {word!r}",
                f"the kinds of devices are {', '.join(kinds)}",
                f"{name}:{next(iter(kinds))}",
            )


def _lack(here: BackendDevice, need: str) -> str:
    """Return why a test that needs a feature cannot run; "" if it can."""
    module = get_backend(here.backend)
    gap = module.gaps.get(_NEEDS[need])
    reason = "" if gap is None else str(gap)
    if not reason and need in DTYPES and (unsupported := module.unsupported_dtype(need, here.device)):
        reason = unsupported.reason
    if not reason and _NEEDS[need] == "devices" and here.device == module.devices()[0]:
        reason = f"its only device here is {here.device}"
    return reason and f"{here.id} lacks {need}: {reason}"


def _version(module: Backend) -> list[str]:
    """Return the version of the library, if it has one."""
    roots = [import_module(cls.__module__.partition(".")[0]) for cls in module.fast.types[:1]]
    return [str(root.__version__) for root in roots if hasattr(root, "__version__")]


# -- gaps of backends ----------------------------------------------------------------------------


def promise(name: str) -> pytest.MarkDecorator:
    """Mark a test as one that fails if a feature, a key of `FEATURES`, is declared as a gap."""
    if name not in FEATURES:
        raise KeyError(name)
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)
    return mark.with_args(name)


def expected_failure(gap: Gap) -> pytest.MarkDecorator:
    """Return the mark of a test whose feature is declared as a gap.

    A missing feature fails a check or is refused by xbridge. Anything else that is raised is a fault.
    """
    return pytest.mark.xfail(
        strict=True, reason=str(gap), raises=(AssertionError, XBridgeError, pytest.fail.Exception)
    )


# -- fixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _xbridge_place(request: pytest.FixtureRequest) -> BackendDevice:
    """Return one backend and device of the run."""
    if not hasattr(request, "param"):
        pytest.fail(
            "cannot choose a backend: pytest parametrizes functions alone, by the names of their arguments; "
            "try naming backend among the arguments of a test function",
            pytrace=False,
        )
    here: BackendDevice = request.param
    return here


@pytest.fixture(scope="session")
def backend(_xbridge_place: BackendDevice) -> str:
    """Return the name of a backend. The test runs once for each that `--xbridge` names."""
    return _xbridge_place.backend


@pytest.fixture(scope="session")
def device(backend: str, request: pytest.FixtureRequest) -> Any:
    """Return the device for the arrays of `backend`: the named one, else one that is not its default."""
    if "_xbridge_place" in request.fixturenames:
        return device_of_namespace(request.getfixturevalue("_xbridge_place"))
    return device_of_namespace(place(backend))


@pytest.fixture(scope="session")
def xp(backend: str) -> ModuleType:
    """Return the array API namespace of `backend`."""
    return namespace(backend)
