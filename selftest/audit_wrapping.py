"""Wraps a drawn module, so that every use of a name in it asks :class:`.audit_watch.Watch`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

_LEFT_ALONE = frozenset({"data", "torch", "os", "nullcontext", "request", "ImportError", "ValueError", *dir(builtins)})


class Resuming(ast.NodeTransformer):
    """Wraps every use of a name, call, attribute, subscript and import, and marks every statement."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.function = ""
        self.scope = ""
        """Qualified name of the class or function around."""
        self.in_class = False
        self.prepared = False
        """Whether an ``except ImportError`` of this scope is around."""
        self.local: tuple[str, ...] = ()
        self.bound_by_class: frozenset[str] = frozenset()

    def _watched(self, what: str, line: int, *given: ast.expr) -> ast.Call:
        place: list[ast.expr] = [ast.Constant(one) for one in (self.file, self.function, line)]
        return ast.Call(ast.Name(f"__{what}__", ast.Load()), [*place, *given], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in _LEFT_ALONE or node.id in self.local:
            return node
        inside: ast.expr = ast.Dict([], [])
        value: ast.expr = node
        if self.in_class:
            inside = ast.Call(ast.Name("locals", ast.Load()), [], [])
            if node.id in self.bound_by_class:  # looked for in the class, then in the module: never in between
                value = ast.parse(f"eval({node.id!r}, globals())", mode="eval").body
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return self._watched("load", node.lineno, ast.Constant(node.id), ast.Lambda(nothing, value), inside)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.Constant(_told(node.func))
        known = isinstance(node.func, ast.Name) and node.func.id in _LEFT_ALONE
        known = known or ast.unparse(node.func).startswith("os.")
        line = node.lineno
        asks = isinstance(node.func, ast.Name) and node.func.id in ("callable", "hasattr")
        self.generic_visit(node)
        if asks:
            node.args[0] = ast.Call(ast.Name("__asked__", ast.Load()), [node.args[0]], [])
        if not known:
            node.func = self._watched("called", line, name, node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left = ast.Call(ast.Name("__asked__", ast.Load()), [self.visit(node.left)], [])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or ast.unparse(node).startswith(("os.", "torch.", "data.")):
            return node
        name = ast.Constant(_told(node.value))
        value = self.visit(node.value)
        return self._watched("attribute", node.lineno, name, value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        name = ast.Constant(_told(node.value))
        node.value = self._watched("item", node.lineno, name, self.visit(node.value))
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Its first iterable is evaluated outside."""
        node.generators[0].iter = self.visit(node.generators[0].iter)
        before, self.in_class = (self.local, self.in_class), False
        self.local = (
            *self.local,
            *(one.id for one in ast.walk(node.generators[0].target) if isinstance(one, ast.Name)),
        )
        node.generators[0].ifs = [self.visit(one) for one in node.generators[0].ifs]
        node.elt = self.visit(node.elt)
        self.local, self.in_class = before
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        before = self.function, self.scope, self.in_class, self.prepared, self.local
        self.function = self.scope = self._inside("<lambda>")
        self.in_class, self.prepared = False, False
        self.local = (*self.local, *(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)))
        node.body = self.visit(node.body)
        self.function, self.scope, self.in_class, self.prepared, self.local = before
        return ast.Call(ast.Name("__met__", ast.Load()), [node], [])

    def _inside(self, name: str) -> str:
        return f"{self.scope}.{name}" if self.scope else name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        node.decorator_list = [
            self._watched("called", one.lineno, ast.Constant(_told(one)), self.visit(one))
            for one in node.decorator_list
        ]
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        before = self.function, self.scope, self.in_class, self.prepared, self.local
        self.function = self.scope = self._inside(node.name)
        self.in_class, self.prepared, self.local = False, False, ()
        node.body = self._body(node.body)
        self.function, self.scope, self.in_class, self.prepared, self.local = before
        made = ast.Call(ast.Name("__met__", ast.Load()), [ast.Name(node.name, ast.Load())], [])
        return [node, ast.Expr(made)] if self.function else [node]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        before = self.scope, self.in_class, self.bound_by_class
        self.scope, self.in_class, self.bound_by_class = self._inside(node.name), True, frozenset(_bound(node.body))
        node.body = self._body(node.body)
        self.scope, self.in_class, self.bound_by_class = before
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if self.prepared:
            return node
        noted = ast.Expr(self._watched("imported", node.lineno, ast.Name("__error__", ast.Load())))
        handler = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), "__error__", [noted, ast.Raise()])
        return ast.Try([node], [handler], [], [])

    def visit_Try(self, node: ast.Try) -> ast.Try:
        before = self.prepared
        caught = {
            one.id for handler in node.handlers for one in ast.walk(handler.type or node) if isinstance(one, ast.Name)
        }
        self.prepared = before or "ImportError" in caught
        node.body = self._body(node.body)
        self.prepared = before
        for handler in node.handlers:
            handler.body = self._body(handler.body)
        node.orelse, node.finalbody = self._body(node.orelse), self._body(node.finalbody)
        return node

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        target = node.targets[0]
        assert isinstance(target, ast.Name)
        looked = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        handler = ast.ExceptHandler(ast.Name("NameError", ast.Load()), None, [ast.Pass()])
        return [ast.Expr(self.visit(looked)), ast.Try([node], [handler], [], [])]

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = self._body(node.body)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(node, name, self._body(inner))
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and not (value and isinstance(value[0], ast.stmt)):
                setattr(node, name, [self.visit(one) if isinstance(one, ast.AST) else one for one in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in body:
            if not isinstance(one, ast.Global):
                made.append(ast.Expr(self._watched("at", one.lineno)))
            visited = self.visit(one)
            made += visited if isinstance(visited, list) else [visited]
        return made


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind in their own scope."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            yield one.id
        if isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and one.name:
            yield one.name
        elif isinstance(one, ast.alias):
            yield one.asname or one.name
        if not isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp)):
            waiting += ast.iter_child_nodes(one)


def _told(node: ast.expr) -> str:
    """Name of what may be None; empty for an expression, of which the audit does not tell."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
