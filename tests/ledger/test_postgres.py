"""PostgreSQL: what a server of its own may do to a ledger."""

from __future__ import annotations

import threading
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from levada import UsageError
from levada.ledger import Action, Ledger, StoreError
from tests.ledger.test_processes import until
from tests.ledger.turned import finished
from tests.servers import running_postgres

END_THE_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


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

    @pytest.mark.parametrize("url", ["postgresql+psycopg://levada:secret/db", "postgresql://u@host:secret/db"])
    def test_a_url_that_makes_no_sense_is_not_quoted(self, url: str) -> None:
        with pytest.raises(UsageError, match="looks like") as raised:
            Ledger.open(url)
        assert "secret" not in "".join(traceback.format_exception(raised.value, chain=True)).replace(url, "")
        assert raised.value.__context__ is None

    @pytest.mark.parametrize(
        ("user", "database", "reason"), [("postgres", "no_such", "missing"), ("nobody_we_know", "postgres", "denied")]
    )
    def test_a_connection_that_is_refused_says_why(
        self, postgres_server: str, user: str, database: str, reason: str
    ) -> None:
        address = postgres_server.rsplit("@", 1)[1].rsplit("/", 1)[0]
        with pytest.raises(StoreError) as raised:
            Ledger.open(f"postgresql+psycopg://{user}@{address}/{database}")
        assert (raised.value.reason, raised.value.retryable) == (reason, False)

    def test_nothing_hangs_on_an_error(self, postgres_url: str) -> None:
        with Ledger.open(postgres_url) as ledger:
            with psycopg.connect(plain(postgres_url)) as other:
                other.execute("ALTER TABLE levada_turns RENAME TO elsewhere")
            with pytest.raises(StoreError) as raised:
                ledger.commit(finished(), key="k")
            assert (raised.value.__context__, raised.value.__cause__) == (None, None)

    @pytest.mark.parametrize("kind", ["ProgrammingError", "InterfaceError", "InternalError", "OperationalError"])
    def test_a_connection_in_an_odd_state_is_left_and_another_one_made(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        with Ledger.open(postgres_url, pool_size=1) as ledger:
            dialect, odd = ledger._database.engine.dialect, iter((True,))
            do_ping = dialect.do_ping

            def ping(connection: Any) -> bool:
                if next(odd, False):
                    raise getattr(psycopg, kind)(
                        "can't change 'autocommit' now: connection in transaction status UNKNOWN"
                    )
                return do_ping(connection)

            monkeypatch.setattr(dialect, "do_ping", ping)
            assert ledger.commit(finished(), key="k").status == "stored"

    @pytest.mark.parametrize("kind", ["ProgrammingError", "InterfaceError", "InternalError", "OperationalError"])
    def test_whatever_the_driver_says_of_a_connection_that_is_gone_the_server_was_out_of_reach(
        self, postgres_url: str, kind: str
    ) -> None:
        with Ledger.open(postgres_url) as ledger:

            @event.listens_for(ledger._database.engine, "before_cursor_execute")
            def gone(connection: Any, *others: object) -> None:
                connection.connection.driver_connection.close()

            @event.listens_for(ledger._database.engine, "do_execute")
            def says(*others: object) -> None:
                raise getattr(psycopg, kind)("odd")

            with pytest.raises(StoreError, match="unreachable") as raised:
                ledger.commit(finished(), key="k")
            assert raised.value.retryable

    def test_options_that_make_no_sense_are_told(self, postgres_url: str) -> None:
        with pytest.raises(StoreError, match="are the options in the URL right") as raised:
            Ledger.open(f"{postgres_url}?nonsense=secret")
        assert not raised.value.retryable

    def test_one_that_may_not_be_written_for_a_moment_is_waited_for(self, postgres_url: str) -> None:
        """As after a failover: the server is there, and a standby."""
        with Ledger.open(postgres_url) as ledger, psycopg.connect(plain(postgres_url), autocommit=True) as other:
            ledger.commit(finished(), key="k", actions=[Action("mail")])
            name = postgres_url.rsplit("/", 1)[1]
            other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            other.execute(END_THE_OTHERS)  # as a failover does
            with pytest.raises(StoreError, match="read_only: the database may not be written, or not now") as raised:
                ledger.dispatch({"mail": print})
            assert raised.value.retryable
            stop = threading.Event()
            options: Any = {"stop": stop, "poll_s": 0.05, "max_poll_s": 0.1}
            runner = threading.Thread(
                target=ledger.run_dispatcher, args=({"mail": lambda action: stop.set()},), kwargs=options
            )
            runner.start()
            other.execute("SET default_transaction_read_only = off")
            other.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            other.execute(END_THE_OTHERS)
            runner.join(30)
            assert not runner.is_alive()
        with Ledger.open(postgres_url, read_only=True) as reader, pytest.raises(StoreError) as raised:
            reader.commit(finished(), key="l")
        assert not raised.value.retryable

    def test_a_statement_that_lasts_too_long_is_told(self, postgres_url: str) -> None:
        with Ledger.open(f"{postgres_url}?options=-cstatement_timeout%3D200") as ledger:
            with psycopg.connect(plain(postgres_url)) as other:
                other.execute("LOCK TABLE levada_turns")
                with pytest.raises(StoreError, match="busy: the server broke a statement off") as raised:
                    ledger.commit(finished(), key="k")
                assert raised.value.retryable
                other.rollback()

    @pytest.mark.parametrize(
        "setting", ["datestyle = 'german, dmy'", "client_encoding = latin1", "timezone = 'Asia/Tokyo'"]
    )
    def test_odd_defaults_of_the_database_do_no_harm(self, postgres_url: str, setting: str) -> None:
        with psycopg.connect(plain(postgres_url), autocommit=True) as other:
            other.execute(f"ALTER DATABASE {postgres_url.rsplit('/', 1)[1]} SET {setting}")
        with Ledger.open(postgres_url) as ledger:
            ledger.commit(finished("água 水"), key="k")
            assert (stored := ledger.get("k")) is not None
            assert stored.answer == "água 水"
            assert abs(datetime.now(UTC) - stored.stored_at) < timedelta(minutes=10)

    def test_the_isolation_is_ours_whatever_the_default(self, postgres_url: str) -> None:
        with Ledger.open(f"{postgres_url}?options=-cdefault_transaction_isolation%3Dserializable") as ledger:
            with ledger._database.writing() as connection:
                assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"

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
