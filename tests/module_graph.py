"""Who imports whom in the package, read from the source without importing it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _module_name(path, source):
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class ModuleGraph:
    """Modules of the package and the modules that each of them uses.

    A name that a package only passes on counts as an import of the module that defines it, so
    that a re-export makes nothing reachable.
    """

    def __init__(self, source=ROOT / "src"):
        paths = {_module_name(path, source): path for path in sorted(source.rglob("*.py"))}
        self.paths = paths
        self.trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
        self.packages = {name for name, path in paths.items() if path.name == "__init__.py"}
        # A module that only imports passes names on too.
        self.fronts = {name for name, tree in self.trees.items() if _only_imports(tree)}

    def imports(self, name, *, typing_only=True):
        """Return the modules that one module uses, wherever in it the import stands."""
        tree = self.trees[name]
        hidden = set() if typing_only else set(_under_type_checking(tree))
        found = {
            self.defining(module, item)
            for node in ast.walk(tree)
            if node not in hidden
            for module, item in _imported(node)
        }
        found |= {text for text in _dotted_texts(tree) if text in self.paths}
        return {module for module in found if module in self.paths} - {name}

    def defining(self, module, item, seen=()):
        """Follow re-exports to the module that defines a name; the module itself for a module."""
        if item is None:
            return module
        if f"{module}.{item}" in self.paths:
            return f"{module}.{item}"
        if module in self.packages | self.fronts and (module, item) not in seen:
            for node in ast.walk(self.trees[module]):
                for source, name in _imported(node, renamed=True):
                    if name == item:
                        original = _original(node, item)
                        return self.defining(source, original, (*seen, (module, item)))
            lazy = _lazy_source(self.trees[module], item)
            if lazy in self.paths:
                return lazy
        return module

    def reachable(self, starts):
        """Return all modules that some modules use, directly or through others."""
        seen, waiting = set(), list(starts)
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.paths:
                continue
            seen.add(name)
            # What a package imports, it passes on; only names that somebody asks for count.
            if name not in self.packages | self.fronts or name.startswith("steelyard.cli"):
                waiting += self.imports(name)
        return seen

    def used_by_page(self, text):
        """Return the modules that define what the Python examples of a page name."""
        found = set()
        for block in re.findall(r"```(?:python|py)\b[^\n]*\n(.*?)```", text, re.DOTALL):
            code = re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.MULTILINE)
            try:
                tree = ast.parse(code)
            except SyntaxError:
                continue
            found |= self._used_by_example(tree)
        return found & set(self.paths)

    def _used_by_example(self, tree):
        names, found = {}, set()
        for node in ast.walk(tree):
            for module, item in _imported(node):
                found.add(self.defining(module, item))
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    names[alias.asname or alias.name] = prefix + alias.name
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                dotted = ast.unparse(node.value)
                head, _, rest = dotted.partition(".")
                owner = names.get(dotted) or (
                    f"{names[head]}.{rest}" if head in names and rest else dotted
                )
                if owner in self.paths:
                    found.add(self.defining(owner, node.attr))
        return found

    def circles(self, prefix):
        """Return the groups of modules below a prefix that import one another in a circle."""
        inside = [name for name in self.paths if name.startswith(prefix + ".")]
        uses = {name: self.imports(name) & set(inside) for name in inside}
        reach = {name: _closure(uses, name) for name in inside}
        groups = {
            frozenset(other for other in reach[name] if name in reach[other]) for name in inside
        }
        return [sorted(group) for group in groups if len(group) > 1]


def _closure(uses, start):
    seen, waiting = set(), list(uses[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += uses[name]
    return seen


def _imported(node, *, renamed=False):
    """Yield (module, name) of one import statement; the name is None for `import module`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.startswith("steelyard"):
                yield alias.name, None
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steelyard"):
        for alias in node.names:
            yield node.module, (alias.asname or alias.name) if renamed else alias.name


def _only_imports(tree):
    """Say whether a module holds nothing but its docstring, imports and the list of its names."""
    kinds = (ast.Import, ast.ImportFrom, ast.Expr)
    return all(
        isinstance(node, kinds) or (isinstance(node, ast.Assign) and "__all__" in ast.unparse(node))
        for node in tree.body
    )


def _original(node, item):
    return next(alias.name for alias in node.names if (alias.asname or alias.name) == item)


def _under_type_checking(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from ast.walk(child)


def _dotted_texts(tree):
    """Modules named in texts: commands that load late ("steelyard.cli.bench:bench"), children."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.fullmatch(r"steelyard(\.\w+)+(:\w+)?", text):
            yield text.partition(":")[0]


def _lazy_source(tree, item):
    """Find the module of a name in a package's table of late imports, {"name": "module"}."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == item:
                    return value.value if isinstance(value, ast.Constant) else None
    return None
