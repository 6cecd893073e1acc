"""As much of msgspec as ``kubectl inspect cgpu`` uses, in Python alone: the one-file plugin runs where nothing can be installed.

It is slower and does the same: a test reads and writes the same with both.
"""

import ast
import builtins
import copy
import enum
import json as _json
import sys
import typing

__version__ = "0"


class MsgspecError(Exception):
    """Root of what is raised here."""


class DecodeError(MsgspecError, ValueError):
    """What is decoded is no JSON."""


class ValidationError(DecodeError):
    """It is JSON of another shape."""


class UnsetType(enum.Enum):
    """The type of ``UNSET``."""

    UNSET = 0

    def __bool__(self):
        return False


UNSET = UnsetType.UNSET


class Meta:
    """Bounds of a number."""

    def __init__(self, *, gt=None, ge=None):
        self.gt = gt
        self.ge = ge


class _Field:
    def __init__(self, default=UNSET, default_factory=None, name=None):
        self.default = default
        self.default_factory = default_factory
        self.name = name


def field(*, default=UNSET, default_factory=None, name=None):
    """A field with another name in JSON, or a default that is made anew."""
    return _Field(default, default_factory, name)


def _camel(name):
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _StructMeta(type):
    def __new__(cls, name, bases, namespace, rename=None, omit_defaults=None, frozen=False, **_):
        made = super().__new__(cls, name, bases, namespace)
        fields = {}
        for base in reversed(made.__mro__[1:]):
            fields.update(getattr(base, "_own_fields", {}))
            rename = rename or getattr(base, "_rename", None)
            omit_defaults = omit_defaults or getattr(base, "_omit_defaults", False)
        own = {}
        for one in namespace.get("__annotations__", {}):
            if "ClassVar" in str(namespace["__annotations__"][one]):
                continue
            given = namespace.get(one, _Field())
            own[one] = given if isinstance(given, _Field) else _Field(given)
            if one in namespace:
                delattr(made, one)
        fields.update(own)
        made._rename, made._omit_defaults = rename, bool(omit_defaults)
        made._own_fields, made._fields = own, fields
        made._own_annotations = dict(namespace.get("__annotations__", {}))
        made.__struct_fields__ = tuple(fields)
        made.__match_args__ = tuple(fields)
        made._written = {one: _written_name(one, given, rename) for one, given in fields.items()}
        made._readers = None
        return made

    def __init__(cls, name, bases, namespace, **_):
        super().__init__(name, bases, namespace)


def _written_name(name, given, rename):
    if given.name is not None:
        return given.name
    if rename == "camel":
        return _camel(name)
    return rename.get(name, name) if isinstance(rename, dict) else name


def _default(given):
    if given.default_factory is not None:
        return given.default_factory()
    value = given.default
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


class Struct(metaclass=_StructMeta):
    """Fields by annotations."""

    def __init__(self, *values, **named):
        cls = type(self)
        into = self.__dict__
        into.update(zip(cls.__struct_fields__, values))  # noqa: B905 (Python 3.9 knows no strict)
        into.update(named)
        if len(into) != len(cls._fields) or len(values) + len(named) > len(into):
            for name, given in cls._fields.items():
                if name not in into:
                    if (
                        given.default is UNSET
                        and given.default_factory is None
                        and "Unset" not in _annotation(cls, name)
                    ):
                        raise TypeError(f"Missing required argument {name!r}")
                    into[name] = _default(given)
            if len(into) != len(cls._fields):
                raise TypeError(f"Unexpected arguments of {cls.__name__}")
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    def _values(self):
        return tuple(self.__dict__[name] for name in self.__struct_fields__)

    def __eq__(self, other):
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self):
        return hash(self._values())

    def __repr__(self):
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({told})"


def _annotation(cls, name):
    return str(_annotated(cls, name)[0])


def _annotated(cls, name):
    """The annotation of a field, and the class in which it is."""
    for one in cls.__mro__:
        own = getattr(one, "_own_annotations", {})
        if name in own:
            return own[name], one
    return "", cls


# --- reading ---------------------------------------------------------------------------------------


def _fail(wanted, value, path):
    kind = {
        dict: "object",
        list: "array",
        str: "str",
        int: "int",
        float: "float",
        bool: "bool",
        type(None): "null",
    }
    where = f" - at `{path}`" if path != "$" else ""
    raise ValidationError(f"Expected `{wanted}`, got `{kind.get(type(value), type(value).__name__)}`{where}")


def _resolved(annotation, namespace):
    """What an annotation means, also one that this Python could not work out itself (``A | B``)."""
    if not isinstance(annotation, str):
        return annotation
    return _of_tree(ast.parse(annotation, mode="eval").body, namespace)


def _of_tree(tree, namespace):
    if isinstance(tree, ast.BinOp):
        return typing.Union[_of_tree(tree.left, namespace), _of_tree(tree.right, namespace)]  # noqa: UP007 (the same)
    if isinstance(tree, ast.Constant):
        return _resolved(tree.value, namespace) if isinstance(tree.value, str) else tree.value
    if isinstance(tree, ast.Name):
        return namespace[tree.id] if tree.id in namespace else getattr(builtins, tree.id)
    if isinstance(tree, ast.Attribute):
        return getattr(_of_tree(tree.value, namespace), tree.attr)
    if isinstance(tree, ast.Subscript):
        inner = tree.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        found = tuple(_of_tree(part, namespace) for part in parts)
        return _of_tree(tree.value, namespace)[found if len(found) > 1 else found[0]]
    return eval(compile(ast.Expression(tree), "annotation", "eval"), namespace)  # noqa: S307 (our own source)


def _reader(wanted):
    """A function of a JSON value and a path that gives what ``wanted`` is; raises ``ValidationError``."""
    if wanted is typing.Any:
        return lambda value, path: value
    if wanted is None or wanted is type(None):
        return lambda value, path: value if value is None else _fail("null", value, path)
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        return lambda value, path: _read_struct(wanted, value, path)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return lambda value, path: _read_enum(wanted, value, path)
    origin, of = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Annotated:
        return _bounded(_reader(of[0]), of[1:])
    if origin is typing.Union or type(wanted).__name__ == "UnionType":
        return _any_of(of)
    if origin in (list, tuple):
        return _sequence(origin, of)
    if origin is dict:
        read_key, read_value = map(_reader, of)
        return lambda value, path: (
            {read_key(key, path): read_value(one, f"{path}[...]") for key, one in value.items()}
            if isinstance(value, dict)
            else _fail("object", value, path)
        )
    return _plain(wanted)


def _plain(wanted):
    if wanted is float:
        return lambda value, path: (
            float(value) if type(value) in (int, float) else _fail("float", value, path)
        )
    # bool is an int to Python, and is none to JSON.
    return lambda value, path: value if type(value) is wanted else _fail(wanted.__name__, value, path)


def _bounded(read, metas):
    def bounded(value, path):
        found = read(value, path)
        for meta in metas:
            if meta.gt is not None and not found > meta.gt:
                raise ValidationError(f"Expected `int` >= {meta.gt + 1} - at `{path}`")
            if meta.ge is not None and not found >= meta.ge:
                raise ValidationError(f"Expected `int` >= {meta.ge} - at `{path}`")
        return found

    return bounded


def _any_of(some):
    readers = [_reader(one) for one in some if one is not UnsetType]
    names = " | ".join("null" if one is type(None) else getattr(one, "__name__", str(one)) for one in some)

    def any_of(value, path):
        inner = None
        for read in readers:
            try:
                return read(value, path)
            except ValidationError as error:
                if f"at `{path}" in str(error) and not str(error).endswith(f"at `{path}`"):
                    inner = error
        if inner is not None:
            raise inner
        return _fail(names, value, path)

    return any_of


def _sequence(kind, of):
    if kind is tuple and not (len(of) == 2 and of[1] is Ellipsis):
        readers = [_reader(one) for one in of]

        def fixed(value, path):
            if not isinstance(value, list) or len(value) != len(readers):
                return _fail("array", value, path)
            return tuple(read(one, f"{path}[{at}]") for at, (read, one) in enumerate(zip(readers, value)))  # noqa: B905 (the same)

        return fixed
    read = _reader(of[0])
    return lambda value, path: (
        kind([read(one, f"{path}[{at}]") for at, one in enumerate(value)])
        if isinstance(value, list)
        else _fail("array", value, path)
    )


def _read_enum(wanted, value, path):
    try:
        return wanted(value)
    except ValueError:
        raise ValidationError(f"Invalid enum value {value!r} - at `{path}`") from None


def _read_struct(cls, value, path):
    if type(value) is not dict:
        return _fail("object", value, path)
    readers = cls._readers
    if readers is None:
        readers = cls._readers = _readers_of(cls)
    made = cls.__new__(cls)
    into = made.__dict__
    # In the order in which they are written, so that of several mistakes the same one is told.
    for key, item in value.items():
        known = readers.get(key)
        if known is not None:
            into[known[0]] = known[1](item, f"{path}.{key}")
    if len(into) != len(readers):
        for written, (name, _, given) in readers.items():
            if name in into:
                continue
            if (
                given.default is UNSET
                and given.default_factory is None
                and "Unset" not in _annotation(cls, name)
            ):
                where = f" - at `{path}`" if path != "$" else ""
                raise ValidationError(f"Object missing required field `{written}`{where}")
            into[name] = _default(given)
    after = getattr(made, "__post_init__", None)
    if after is not None:
        after()
    return made


def _readers_of(cls):
    found = {}
    for name, given in cls._fields.items():
        annotation, one = _annotated(cls, name)
        namespace = {**sys.modules[one.__module__].__dict__, one.__name__: one}
        found[cls._written[name]] = (name, _reader(_resolved(annotation, namespace)), given)
    return found


def convert(value, wanted):
    """What ``wanted`` is of a JSON value; raises ``ValidationError``."""
    return _reader(wanted)(value, "$")


# --- writing ---------------------------------------------------------------------------------------


def to_builtins(value):
    """``value`` as dicts, lists and scalars."""
    if isinstance(value, Struct):
        cls = type(value)
        found = {}
        for name, given in cls._fields.items():
            one = value.__dict__[name]
            if one is UNSET or (cls._omit_defaults and given.default is not UNSET and one == given.default):
                continue
            found[cls._written[name]] = to_builtins(one)
        return found
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {to_builtins(key): to_builtins(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_builtins(one) for one in value]
    return value


class _Decoder:
    def __init__(self, wanted=typing.Any):
        self._read = None
        self._wanted = wanted

    def __class_getitem__(cls, _):
        return cls

    def decode(self, raw):
        """Read JSON; raises ``DecodeError``."""
        if self._read is None:
            self._read = _reader(self._wanted)
        return self._read(_loaded(raw), "$")


def _loaded(raw):
    try:
        return _json.loads(raw if isinstance(raw, str) else bytes(raw).decode())
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DecodeError(f"JSON is malformed: {error}") from None


def _encode(value):
    return _json.dumps(to_builtins(value), ensure_ascii=False, separators=(",", ":")).encode()


def _format(raw, indent=2):
    return _json.dumps(_json.loads(raw), ensure_ascii=False, indent=indent).encode()


def _replace(value, **changed):
    made = type(value).__new__(type(value))
    made.__dict__.update(value.__dict__)
    made.__dict__.update(changed)
    return made


class json:  # noqa: N801 (as the module of msgspec)
    """``msgspec.json``."""

    Decoder = _Decoder
    encode = staticmethod(_encode)
    format = staticmethod(_format)
    decode = staticmethod(lambda raw: _Decoder().decode(raw))


class structs:  # noqa: N801 (as the module of msgspec)
    """``msgspec.structs``."""

    replace = staticmethod(_replace)
