"""The running batch: joining, leaving, cancelling, failing, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from specdec_plugins.decoding.types import DecodeParams, Request
from specdec_plugins.serving.errors import Failed, Invalid, Stopping
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.queue import RowUpdate, Submission
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchWorker
from tests.serving.toys import (
    MAX_LEN,
    PATIENCE,
    GatedVerifier,
    ToyCodec,
    expected_ids,
    toy_model,
    wait_until,
)


class Inbox(Submission):
    """Some sentences and what came back for each."""

    def __init__(self, *sentences: str, max_len: int = MAX_LEN) -> None:
        codec = ToyCodec()
        params = DecodeParams(max_len=max_len, top_k=1, block_size=5)
        requests = [Request("x", codec.source_ids(s), params) for s in sentences]
        self.sentences = sentences
        self.updates: list[list[RowUpdate]] = [[] for _ in sentences]
        super().__init__(requests, self._take)
        self.when_first_told: Callable[[], None] = lambda: None
        self._left = len(sentences)
        self._done = threading.Event()

    def _take(self, updates: Sequence[RowUpdate]) -> None:
        if not any(self.updates):
            self.when_first_told()
        for update in updates:
            self.updates[update.row].append(update)
            self._left -= update.is_last
        if not self._left:
            self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> Inbox:
        assert self._done.wait(PATIENCE)
        return self

    def ids(self, row: int = 0) -> list[int]:
        return [i for u in self.updates[row] if u.event is not None for i in u.event.emitted_ids]

    def error(self, row: int = 0) -> Exception | None:
        return self.updates[row][-1].error


@contextmanager
def working() -> Iterator[tuple[BatchWorker, GatedVerifier]]:
    """A worker of at most four rows; none of them is left when it is closed."""
    model = toy_model()
    verifier = model.verifier
    assert isinstance(verifier, GatedVerifier)
    worker = BatchWorker(model.new_session, ServerSettings(max_rows=4), Metrics())
    worker.start()
    try:
        yield worker, verifier
    finally:
        verifier.gate.set()
        assert worker.close(PATIENCE)
        assert worker.num_rows == worker.num_waiting == 0


def test_rows_join_a_running_batch_and_every_one_gets_its_own_answer() -> None:
    with working() as (worker, verifier):
        verifier.gate.clear()
        inboxes = [Inbox(f"w{i}", f"w{(i + 5) % 12} w3") for i in range(12)]
        for inbox in inboxes:
            worker.submit(inbox)
        verifier.gate.set()
        for inbox in inboxes:
            inbox.wait()
            for row, sentence in enumerate(inbox.sentences):
                assert inbox.ids(row) == expected_ids(sentence)
                assert all(update.batch_size <= 4 for update in inbox.updates[row])
        # An idle batch holds no rows.
        wait_until(lambda: len(verifier.lent.keys) == 0)
    sizes = [u.batch_size for inbox in inboxes for row in inbox.updates for u in row]
    assert max(sizes) == 4


def test_a_late_sentence_joins_before_the_early_ones_are_done() -> None:
    with working() as (worker, _):
        early, late = Inbox("w0"), Inbox("w1", max_len=1)  # w0 decodes until its limit
        early.when_first_told = lambda: worker.submit(late)
        worker.submit(early)
        late.wait()
        early.wait()
        assert late.updates[0][0].joined_at < early.updates[0][-1].at
        assert late.updates[0][0].batch_size == 2


def test_a_long_job_does_not_hold_up_a_short_one() -> None:
    with working() as (worker, verifier):
        verifier.gate.clear()
        book, word = Inbox(*["w0"] * 60), Inbox("w1")
        worker.submit(book)
        worker.submit(word)
        verifier.gate.set()
        word.wait()
        num_done = sum(bool(row) and row[-1].is_last for row in book.updates)
        assert num_done < 20
        book.wait()


def test_cancelling_spares_the_neighbours() -> None:
    with working() as (worker, verifier):
        verifier.gate.clear()
        unwanted, wanted = Inbox("w0", "w3"), Inbox("w6", "w9")
        worker.submit(unwanted)
        worker.submit(wanted)
        worker.cancel(unwanted)
        verifier.gate.set()
        wanted.wait()
        assert [wanted.ids(0), wanted.ids(1)] == [expected_ids("w6"), expected_ids("w9")]
        assert not unwanted.is_done


@pytest.mark.parametrize("poison", [0, 2, 5])
def test_a_row_that_breaks_the_batch_fails_alone(poison: int) -> None:
    with working() as (worker, verifier):
        verifier.poison = poison
        verifier.gate.clear()
        inbox = Inbox(*[f"w{i}" for i in range(7)])
        worker.submit(inbox)
        verifier.gate.set()
        inbox.wait()
        for row, sentence in enumerate(inbox.sentences):
            if row == poison:
                assert isinstance(inbox.error(row), Failed)
            else:
                assert inbox.ids(row) == expected_ids(sentence)
        assert worker.is_healthy


def test_rows_go_on_where_a_failed_round_left_them() -> None:
    with working() as (worker, verifier):
        early, bad = Inbox("w0"), Inbox("w1")
        early.when_first_told = lambda: worker.submit(bad)
        verifier.poison = 1
        worker.submit(early)
        assert isinstance(bad.wait().error(), Failed)
        assert early.wait().ids() == expected_ids("w0")


def test_a_sentence_that_cannot_be_decoded_is_refused_alone() -> None:
    with working() as (worker, _):
        inbox = Inbox("w1", max_len=10_000)
        good = Inbox("w2")
        worker.submit(inbox)
        worker.submit(good)
        assert isinstance(inbox.wait().error(), Invalid)
        assert good.wait().ids() == expected_ids("w2")


def test_closing_finishes_accepted_work_and_takes_no_more() -> None:
    with working() as (worker, verifier):
        verifier.gate.clear()
        inbox = Inbox(*[f"w{i}" for i in range(9)])
        worker.submit(inbox)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(worker.close, PATIENCE)
            wait_until(lambda: worker.is_closing)
            with pytest.raises(Stopping):
                worker.submit(Inbox("w0"))
            verifier.gate.set()
            assert closing.result()
        assert inbox.is_done
        assert [inbox.ids(i) for i in range(9)] == [expected_ids(f"w{i}") for i in range(9)]


def test_what_is_left_when_the_time_to_close_is_over_is_failed() -> None:
    with working() as (worker, verifier):
        verifier.gate.clear()
        inbox = Inbox(*["w0 w1"] * 9)  # each decodes until its limit, and five wait in line
        worker.submit(inbox)
        wait_until(lambda: worker.num_rows == 4)
        assert not worker.close(timeout=0.01)
        verifier.allow(0)  # the round under way ends, and a second one would stop at the gate
        inbox.wait()
        assert all(isinstance(inbox.error(i), Stopping) for i in range(9))
        assert worker.close(PATIENCE)
