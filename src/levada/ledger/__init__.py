"""The ledger: finished turns and what is to be done about them, on SQLite or PostgreSQL. Needs the extra `ledger`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ImportError("levada.ledger needs SQLAlchemy: pip install 'levada[ledger]'")

from levada.errors import KeyConflict, LedgerError, LedgerTooLarge, SchemaMismatch, StoreError
from levada.ledger.asynchronous import AsyncLedger
from levada.ledger.store import Ledger, Validator
from levada.ledger.values import (
    Action,
    Committed,
    DeadLetter,
    Dispatched,
    DueAction,
    PartialTurn,
    RefusedTurn,
    StoredRecord,
    StoredTurn,
)

__all__ = [
    "Action",
    "AsyncLedger",
    "Committed",
    "DeadLetter",
    "Dispatched",
    "DueAction",
    "KeyConflict",
    "Ledger",
    "LedgerError",
    "LedgerTooLarge",
    "PartialTurn",
    "RefusedTurn",
    "SchemaMismatch",
    "StoreError",
    "StoredRecord",
    "StoredTurn",
    "Validator",
]
