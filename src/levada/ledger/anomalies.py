"""Which anomalies touch content: the answer, the reasoning, the refusal, the tool calls. The table behind `intact`.

An anomaly is something odd that a turn tolerated; most lose nothing. A name stands in `TOUCHING` where levada had to
guess to whom a piece belongs, left out a piece that it could not read, or was contradicted by the provider's own final
text; and in `HARMLESS` where all content was read, whatever else was odd. A name in neither counts as touching.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["HARMLESS", "TOUCHING"]

TOUCHING: Final = MappingProxyType(
    {
        # the provider's own final statement is another one
        "arguments_differ": "the final arguments of a tool call are not the sum of its fragments",
        "final_text_differs": "the final text is not the sum of its deltas",
        "final_text_missing": "the final text, which confirms the streamed one, did not come",
        "item_not_in_output": "an item that was streamed is not in the final output",
        "citation_past_text": "a citation ends past the text: some of the text may be missing",
        # something that may hold text or a call was not read
        "not_an_object": "an event was JSON and no object, and was not read",
        "stray_line": "a line of the stream was no field: an event may have been damaged",
        "unknown_block": "a content block of an unknown type was kept and not read",
        "unknown_delta": "a delta of an unknown type was not read",
        "unknown_event": "an event of an unknown type was not read",
        "unknown_item": "an output item of an unknown type was kept and not read",
        "unknown_part": "a part of an unknown type was not read",
        "thinking_part_unknown": "a part of the reasoning was not read",
        "reasoning_detail_no_object": "a detail of the reasoning was not read",
        "missing_delta": "an event brought no delta where its text should be",
        "missing_delta_type": "the type of a delta was guessed by its fields, or the delta was not read",
        "missing_item": "an item began or ended without its body",
        "missing_part": "a part began or ended without its body",
        "unexpected_delta": "a delta did not fit its block and was left out",
        "repeated_tool_use": "a tool call came twice; the second was left out and not compared",
        "input_no_object": "the fragments of a server tool's input do not join to a JSON object",
        # where a piece belongs was guessed
        "missing_index": "the block of a delta was guessed",
        "missing_output_index": "the item of a delta was guessed",
        "item_not_begun": "a delta came for an item whose beginning did not",
        "tool_id_drifts": "a tool call's id changed on the way: fragments of two calls may be mixed",
        "tool_index_drifts": "the tool call of a fragment was guessed",
        # the end of a piece did not come, or came too early
        "argument_not_ended": "a streamed argument of a tool call was never ended",
        "block_left_open": "a content block was never ended",
        "delta_after_stop": "a delta came after the end of its block",
    }
)

HARMLESS: Final = MappingProxyType(
    {
        "after_end": "the terminal signal confirmed all that came before it; whether this is counted depends on when "
        "result() is called",
        # the frame
        "array_not_closed": "the last state had confirmed the answer",
        "done_sentinel": "a sentinel of another wire, put there by a gateway",
        "lenient_json": "read whole, by a lenient reader",
        "list_of_chunks": "each of them was read",
        "list_of_elements": "each of them was read",
        "not_json": "content is JSON on every wire, and what begins as JSON and is not is an error: "
        "this is a keep-alive, as `data: : keepalive`",
        # names and heads that could be made up for
        "event_name_differs": "a contradiction about content is an error; any other event was read by its type",
        "missing_event_name": "a terminal event without its name was not believed; one with it finished the turn",
        "missing_message": "the head alone: id, model and usage",
        "missing_response": "the head or the repetition of what had come; nothing contradicts it",
        "missing_stop_reason": "the message was ended; see finish_reason_in",
        "missing_type": "the event's name told it",
        "output_index_reused": "items are told apart by type and id; a mixture shows as final_text_differs or "
        "arguments_differ",
        "status_differs": "about the finish; see finish_reason_in",
        "unknown_state": "the element's text was read; only SUCCEEDED finishes the turn",
        # the same thing twice, and nothing new in it
        "reasoning_repeated": "one text, as summary and as raw text",
        "repeated_block_start": "nothing had come between the two",
        "repeated_block_stop": "the block had ended",
        "repeated_item_added": "the same item",
        "repeated_message_start": "the same message; another one is an error",
        "repeated_response_created": "the same response; another one is an error",
        # beside the content
        "annotation_no_object": "a citation",
        "citation_no_object": "a citation",
        "citation_offset": "a citation's place",
        "metadata_unread": "metadata",
        "missing_data": "redacted reasoning, which nobody can read",
        "signature_no_string": "a signature",
        "tool_id_no_string": "the call's id; it has one of ours",
        "unknown_citation": "a citation",
        "unknown_reference": "a reference",
        "usage_no_object": "usage",
        "usage_too_large": "usage",
    }
)
