"""PostgreSQL: what a server of its own may do to a ledger."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from levada import UsageError
from levada.ledger import Action, Ledger, StoreError
from tests.ledger.test_processes import until
from tests.ledger.turned import finished
from tests.servers import running_postgres


def plain(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


class TestTheServer:
    def test_it_may_die_and_come_back(self) -> None:
        with running_postgres() as server:
            with Ledger.open(server.url) as ledger:
                ledger.commit(finished(), key="a", actions=[Action("mail")])
                server.kill()
                with pytest.raises(StoreError, match="unreachable: the connection to the server failed") as raised:
                    ledger.commit(finished(), key="b")
                assert raised.value.retryable
                with pytest.raises(StoreError, match="unreachable"):
                    Ledger.open(server.url)
                server.start()
                assert ledger.commit(finished(), key="b").status == "stored"
                assert ledger.commit(finished(), key="a", actions=[Action("mail")]).status == "already_stored"
                assert ledger.dispatch({"mail": print}).done == 1

    def test_what_was_said_to_be_stored_is_there_after_a_crash(self) -> None:
        """Writers go on until their server dies, three times; each commit that failed is made again with its key."""
        with running_postgres() as server:
            said: set[str] = set()
            with Ledger.open(server.url, pool_size=8) as ledger:

                def write(name: str, turns: int = 10_000) -> None:
                    for n in range(turns):
                        key = f"{name}/{n}"
                        try:
                            ledger.commit(finished(), key=key, actions=[Action("mail")])
                        except StoreError as error:
                            failed[key] = error.retryable
                            return
                        said.add(key)

                for crash in range(3):
                    failed: dict[str, bool] = {}
                    threads = [threading.Thread(target=write, args=(f"{crash}.{n}",)) for n in range(6)]
                    before = len(said)
                    for thread in threads:
                        thread.start()
                    until(lambda before=before: len(said) > before + 30, "nothing is written")  # type: ignore[misc]
                    server.kill()
                    for thread in threads:
                        thread.join()
                    server.start()
                    assert list(failed.values()) == [True] * 6
                    for key in failed:
                        status = ledger.commit(finished(), key=key, actions=[Action("mail")]).status
                        assert status in ("stored", "already_stored")
                        said.add(key)
                    assert {turn.key for turn in ledger.each_turn()} == said
                    assert ledger.queued() == {"mail": len(said)}

    def test_a_dispatcher_waits_for_it(self) -> None:
        with running_postgres() as server:
            with Ledger.open(server.url) as ledger:
                server.kill()
                stop = threading.Event()
                options: Any = {"stop": stop, "poll_s": 0.05, "max_poll_s": 0.1}
                runner = threading.Thread(
                    target=ledger.run_dispatcher, args=({"mail": lambda action: stop.set()},), kwargs=options
                )
                runner.start()
                server.start()
                ledger.commit(finished(), key="a", actions=[Action("mail")])
                assert stop.wait(30)
                runner.join(30)
                assert not runner.is_alive()

    def test_a_wrong_database_and_a_wrong_port_are_told(self, postgres_url: str) -> None:
        with pytest.raises(StoreError, match=r"unreachable|missing"):
            Ledger.open(f"{postgres_url}_not")
        with pytest.raises(StoreError, match="unreachable"):
            Ledger.open("postgresql+psycopg://postgres:secret@127.0.0.1:1/x")

    def test_an_error_names_no_password(self) -> None:
        with pytest.raises(StoreError) as raised:
            Ledger.open("postgresql+psycopg://postgres:secret@127.0.0.1:1/x")
        assert "secret" not in repr(raised.value)

    def test_a_url_without_a_driver_will_do(self, postgres_url: str) -> None:
        with Ledger.open(plain(postgres_url)) as ledger:
            assert ledger.count() == 0

    def test_a_database_that_cannot_hold_every_character_is_refused(self, postgres_url: str) -> None:
        with psycopg.connect(plain(postgres_url), autocommit=True) as other:
            other.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(UsageError, match="needs a database in UTF8, and this one is in LATIN1"):
                Ledger.open(f"{postgres_url.rsplit('/', 1)[0]}/latin")
        finally:
            with psycopg.connect(plain(postgres_url), autocommit=True) as other:
                other.execute("DROP DATABASE latin WITH (FORCE)")


class TestLocks:
    def test_one_that_is_held_too_long_is_told(self, postgres_url: str) -> None:
        with Ledger.open(postgres_url, busy_timeout_s=0.3) as ledger:
            ledger.commit(finished(), key="k", actions=[Action("mail")])
            with psycopg.connect(plain(postgres_url)) as other:
                other.execute("LOCK TABLE levada_turns")
                with pytest.raises(StoreError, match="busy: a lock was held for longer than busy_timeout_s") as raised:
                    ledger.commit(finished(), key="l")
                assert raised.value.retryable
                other.rollback()
            assert ledger.commit(finished(), key="l").status == "stored"

    def test_a_dispatcher_passes_over_an_action_that_another_one_takes(self, postgres_url: str) -> None:
        with Ledger.open(postgres_url) as ledger:
            ledger.commit(finished(), key="k", actions=[Action("mail", 1), Action("mail", 2)])
            with psycopg.connect(plain(postgres_url)) as other:
                other.execute("SELECT n FROM levada_outbox ORDER BY n LIMIT 1 FOR UPDATE")
                seen: list[Any] = []
                ledger.dispatch({"mail": lambda action: seen.append(action.payload)})
                assert seen == [2]

    def test_the_time_is_the_servers(self, postgres_url: str) -> None:
        with Ledger.open(postgres_url) as ledger, psycopg.connect(plain(postgres_url), autocommit=True) as other:
            first = other.execute("SELECT clock_timestamp()").fetchone()
            ledger.commit(finished(), key="k")
            then = other.execute("SELECT clock_timestamp()").fetchone()
            assert (turn := ledger.get("k")) is not None
            assert first is not None
            assert then is not None
            assert first[0] <= turn.stored_at <= then[0]
