"""A request that the gateway answers with an error in the place of a stream."""

from __future__ import annotations

from starlette.responses import JSONResponse

__all__ = ["Refused"]


class Refused(Exception):
    """The HTTP status, our word for it, and why; headers with underscores for dashes."""

    def __init__(self, status: int, type: str, message: str, **headers: str) -> None:
        super().__init__(status, type, message)
        self.status, self.type, self.message, self.headers = status, type, message, headers

    def response(self) -> JSONResponse:
        """Return the answer."""
        body = {"error": {"type": self.type, "message": self.message}}
        return JSONResponse(body, self.status, {name.replace("_", "-"): text for name, text in self.headers.items()})
