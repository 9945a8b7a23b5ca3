"""The running batch: joining, leaving, cancelling, failing, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchWorker, RowRound, Submission
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

    def __init__(self, *sentences: str, max_len: int = MAX_LEN, streams: bool = True) -> None:
        codec = ToyCodec()
        params = DecodeParams(max_len=max_len, top_k=1, block_size=5)
        requests = [Request("x", codec.source_ids(s), params) for s in sentences]
        super().__init__(requests, streams=streams)
        self.told: list[RowRound | Exception] = []
        self.sentences = sentences
        self.statuses = [0] * len(sentences)  # of the errors that ended them
        self.when_first_told: Callable[[], None] = lambda: None
        self._left = len(sentences)
        self.done = threading.Event()

    def deliver(self, row: int, news: RowRound | Exception) -> None:
        self.told.append(news)
        if isinstance(news, ServiceError):
            self.statuses[row] = news.status
        elif len(self.told) == 1 and row == 0:
            self.when_first_told()
        self._left -= not isinstance(news, RowRound) or news.event.result is not None
        if not self._left:
            self.done.set()

    def wait(self) -> Inbox:
        assert self.done.wait(PATIENCE)
        return self

    def ids(self) -> list[list[int]]:
        return [row.token_ids for row in self.rows]

    def expected(self) -> list[list[int]]:
        return [expected_ids(sentence) for sentence in self.sentences]


class ToyWorker(BatchWorker):
    """Of at most four rows."""

    def __init__(self, **limits: int) -> None:
        self.verifier = GatedVerifier()
        sessions = toy_model(verifier=self.verifier).decoder
        super().__init__(sessions.open, ServerSettings(max_rows=4, **limits), Metrics())

    def take(self, *inboxes: Inbox) -> None:
        """All of them before anything is decoded."""
        self.verifier.gate.clear()
        for inbox in inboxes:
            self.submit(inbox)
        self.verifier.gate.set()


@pytest.fixture
def worker() -> Iterator[ToyWorker]:
    """None of its rows is left when it is closed."""
    worker = ToyWorker()
    worker.start()
    yield worker
    worker.verifier.gate.set()
    assert worker.close(PATIENCE)
    assert worker.num_rows == worker.num_waiting == 0


def test_rows_join_a_running_batch_and_every_one_gets_its_own_answer(worker: ToyWorker) -> None:
    inboxes = [Inbox(f"w{i}", f"w{(i + 5) % 12} w3") for i in range(12)]
    worker.take(*inboxes)
    assert [inbox.wait().ids() for inbox in inboxes] == [i.expected() for i in inboxes]
    told = [one for inbox in inboxes for one in inbox.told if isinstance(one, RowRound)]
    assert max(one.batch_size for one in told) == 4
    # An idle batch holds no rows.
    wait_until(lambda: len(worker.verifier.lent.keys) == 0)


def test_a_late_sentence_joins_before_the_early_ones_are_done(worker: ToyWorker) -> None:
    early, late = Inbox("w0"), Inbox("w1", max_len=1)  # w0 decodes until its limit
    early.when_first_told = lambda: worker.submit(late)
    worker.submit(early)
    [first, *_] = late.wait().told
    assert isinstance(first, RowRound)
    assert first.batch_size == 2
    early.wait()


def test_who_does_not_stream_is_told_the_end_alone(worker: ToyWorker) -> None:
    whole, piece = Inbox("w0", "w1", streams=False), Inbox("w0")
    worker.take(whole, piece)
    assert whole.wait().ids() == whole.expected()
    assert len(whole.told) == 2
    assert len(piece.wait().told) == len(piece.rows[0].events) > 1


def test_a_long_job_does_not_hold_up_a_short_one(worker: ToyWorker) -> None:
    book, word = Inbox(*["w0"] * 60), Inbox("w1")
    worker.take(book, word)
    word.wait()
    assert sum(len(ids) == MAX_LEN for ids in book.ids()) < 20
    book.wait()


def test_cancelling_spares_the_neighbours(worker: ToyWorker) -> None:
    unwanted, wanted = Inbox("w0", "w3"), Inbox("w6", "w9")
    worker.verifier.allow(0)
    worker.submit(unwanted)
    worker.submit(wanted)
    worker.cancel(unwanted)
    worker.verifier.allow(None)
    assert wanted.wait().ids() == wanted.expected()
    assert not unwanted.done.is_set()


@pytest.mark.parametrize("poison", [0, 2, 5])
def test_a_row_that_breaks_the_batch_fails_alone(worker: ToyWorker, poison: int) -> None:
    worker.verifier.poison = poison
    inbox = Inbox(*[f"w{i}" for i in range(7)])
    worker.take(inbox)
    ids, wanted = inbox.wait().ids(), inbox.expected()
    assert inbox.statuses == [500 if row == poison else 0 for row in range(7)]
    assert [*ids[:poison], *ids[poison + 1 :]] == [*wanted[:poison], *wanted[poison + 1 :]]
    assert worker.status == "ok"


def test_rows_go_on_where_a_failed_round_left_them(worker: ToyWorker) -> None:
    early, bad = Inbox("w0"), Inbox("w1")
    early.when_first_told = lambda: worker.submit(bad)
    worker.verifier.poison = 1
    worker.submit(early)
    assert bad.wait().statuses == [500]
    assert early.wait().ids() == early.expected()


def test_a_sentence_that_cannot_be_decoded_is_refused_alone(worker: ToyWorker) -> None:
    bad, good = Inbox("w1", max_len=10_000), Inbox("w2")
    worker.take(bad, good)
    assert bad.wait().statuses == [422]
    assert good.wait().ids() == good.expected()


def test_closing_finishes_accepted_work_and_takes_no_more(worker: ToyWorker) -> None:
    worker.verifier.gate.clear()
    inbox = Inbox(*[f"w{i}" for i in range(9)])
    worker.submit(inbox)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(worker.close, PATIENCE)
        wait_until(lambda: worker.status == "stopping")
        with pytest.raises(ServiceError, match="shutting down"):
            worker.submit(Inbox("w0"))
        worker.verifier.gate.set()
        assert closing.result()
    assert inbox.done.is_set()
    assert inbox.ids() == inbox.expected()


def test_what_is_left_when_the_time_to_close_is_over_is_failed(worker: ToyWorker) -> None:
    worker.verifier.gate.clear()
    inbox = Inbox(*["w0 w1"] * 9)  # each decodes until its limit, and five wait in line
    worker.submit(inbox)
    wait_until(lambda: worker.num_rows == 4)
    assert not worker.close(timeout=0.01)
    worker.verifier.allow(0)  # the round under way ends, and a second one would stop at the gate
    assert inbox.wait().statuses == [503] * 9


def test_places_bound_what_waits_and_what_is_being_prepared() -> None:
    worker = ToyWorker(max_waiting=5)  # that never starts
    with worker.places() as take:
        take(3)
        with worker.places() as other:
            other(2)
            with pytest.raises(ServiceError, match="5 sentences are waiting"):
                take(1)
        with pytest.raises(ServiceError):
            other(1)  # its block has ended
        take(2)
    worker.submit(Inbox("w1", "w2", "w3"))
    with worker.places() as take:
        take(2)
        with pytest.raises(ServiceError, match="try again later") as caught:
            take(1)
    assert caught.value.status == 429
