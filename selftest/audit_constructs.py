"""Forms of the language in which a use is reached on HIP, each beside one in which it is not.

``USE`` stands for the use of a name that is bound under CUDA only.
"""

from __future__ import annotations

from textwrap import dedent

_FORMS = {
    "with": (
        """
        def f(p):
            with p.lock:
                USE
        """,
        """
        def f(p):
            with suppress(NameError):
                USE
        """,
    ),
    "loop": (
        """
        def f(p):
            for _ in p:
                USE
        """,
        """
        def f(p):
            while is_cuda():
                USE
        """,
    ),
    "match": (
        """
        def f(p):
            match p:
                case 1:
                    USE
        """,
        """
        def f(p):
            match p:
                case _ if _is_cuda:
                    USE
        """,
    ),
    "try": (
        """
        def f(p):
            try:
                USE
            finally:
                pass
        """,
        """
        def f(p):
            try:
                USE
            except NameError:
                pass
        """,
    ),
    "raised again": (
        """
        def f(p):
            try:
                USE
            except NameError:
                print(p)
                raise
        """,
        """
        def f(p):
            try:
                USE
            except NameError:
                raise RuntimeError from None
        """,
    ),
    "assert": (
        """
        def f(p):
            assert p
            USE
        """,
        """
        def f(p):
            assert _is_cuda
            USE
        """,
    ),
    "early return": (
        """
        def f(p):
            if p:
                return
            USE
        """,
        """
        def f(p):
            if _is_hip:
                return
            USE
        """,
    ),
    "else of a loop": (
        """
        def f(p):
            for _ in p:
                pass
            else:
                USE
        """,
        """
        def f(p):
            while True:
                pass
            USE
        """,
    ),
    "nested function": (
        """
        def f(p):
            def g():
                USE
            return g()
        """,
        """
        def f(p):
            if not _is_hip:
                def g():
                    USE
        """,
    ),
    "class body": (
        """
        class A:
            USE
        """,
        """
        if not _is_hip:
            class A:
                USE
        """,
    ),
    "class in a class": (
        """
        def f(p):
            class A:
                top_k_renorm_prob = print
                class B:
                    USE
        """,
        """
        def f(p):
            top_k_renorm_prob = print
            class A:
                class B:
                    USE
        """,
    ),
    "chained comparison": (
        """
        def f(p):
            if 0 < p.rows < 9:
                USE
        """,
        """
        def f(p):
            if 1 < 2 > 3:
                USE
        """,
    ),
    "boolean algebra": (
        """
        def f(p):
            if not (_is_cuda and p) or _is_cuda:
                USE
        """,
        """
        def f(p):
            if not (_is_hip or p) and (p or _is_hip):
                USE
        """,
    ),
    "conditional expression": (
        """
        X = 1 if _is_cuda else None
        def f(p):
            if X is None:
                USE
        """,
        """
        X = 1 if _is_cuda else None
        def f(p):
            if X:
                USE
        """,
    ),
    "several targets": (
        """
        _a, _b = _is_cuda, not _is_cuda
        def f(p):
            if _b:
                USE
        """,
        """
        _a, _b = _is_cuda, not _is_cuda
        def f(p):
            if _a:
                USE
        """,
    ),
    "keyword argument": (
        """
        def on(hip=False):
            return hip
        def f(p):
            if on(hip=_is_hip):
                USE
        """,
        """
        def on(hip=False):
            return hip
        def f(p):
            if on(hip=_is_cuda):
                USE
        """,
    ),
    "bool()": (
        """
        def f(p):
            if bool(_is_hip):
                USE
        """,
        """
        def f(p):
            if not bool(_is_hip):
                USE
        """,
    ),
    "vLLM's platform": (
        """
        def f(p, current_platform):
            if current_platform.is_rocm():
                USE
        """,
        """
        def f(p, current_platform):
            if current_platform.is_cuda():
                USE
        """,
    ),
    "a tensor on a HIP device": (
        """
        def f(p):
            if p.is_cuda:
                USE
        """,
        """
        def f(p):
            if hasattr(torch, 'npu'):
                USE
        """,
    ),
    "continue": (
        """
        def f(p):
            for row in p:
                if row:
                    continue
                USE
        """,
        """
        def f(p):
            for row in p:
                if _is_hip:
                    continue
                USE
        """,
    ),
    "contradiction": (
        """
        def f(p):
            if p.tall or not p.tall:
                USE
        """,
        """
        def f(p):
            if not p.tall and p.tall:
                USE
        """,
    ),
}

CONSTRUCTS: dict[str, tuple[str, str]] = {
    name: (dedent(reached), dedent(not_reached)) for name, (reached, not_reached) in _FORMS.items()
}
"""By name: the form that reaches the use, and the one that does not."""
