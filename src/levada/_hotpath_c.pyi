# The compiled twin has the types of the reference.
from levada._hotpath_py import Event as Event
from levada._hotpath_py import EventParser as EventParser
from levada._hotpath_py import JsonArray as JsonArray
from levada._hotpath_py import Utf8Decoder as Utf8Decoder
