"""Files of answers are whole, whoever writes them at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from waveproof.fixtures.stored_answers import store


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "made" / "answers.json"
    texts = [str(number) * 100_000 for number in range(8)]
    store(file, texts[0])
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(store, file, text) for text in texts]
        while not all(one.done() for one in written):
            assert file.read_text() in texts
        for one in written:
            one.result()
    assert file.read_text() in texts
    assert os.listdir(file.parent) == [file.name]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    store(file, "before")
    with pytest.raises(UnicodeEncodeError):
        store(file, "\ud800")
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == [file.name]
