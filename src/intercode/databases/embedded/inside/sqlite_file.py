"""Has SQLite open a descriptor by a path of our choice, so that nothing has to be copied.

SQLite follows no symlinks and so cannot open ``/proc/self/fd/N``; but its file layer lets a system
call be replaced, which is for just such cases (``xSetSystemCall``, made for sandboxes).
"""

from __future__ import annotations

import ctypes
import os

_PATH, _INT = ctypes.c_char_p, ctypes.c_int
_Open = ctypes.CFUNCTYPE(_INT, _PATH, _INT, _INT, use_errno=True)
_SetSystemCall = ctypes.CFUNCTYPE(_INT, ctypes.c_void_p, _PATH, ctypes.c_void_p)
_BEFORE_SET = (
    "pNext zName pAppData xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose "
    "xRandomness xSleep xCurrentTime xGetLastError xCurrentTimeInt64"
)


class _Vfs(ctypes.Structure):
    _fields_ = (
        *(("iVersion", _INT), ("szOsFile", _INT), ("mxPathname", _INT)),
        *((name, ctypes.c_void_p) for name in _BEFORE_SET.split()),
        ("xSetSystemCall", ctypes.c_void_p),
    )


class Redirection:
    """Opens some paths as descriptors. One lasts as long as the process."""

    def __init__(self) -> None:
        self.descriptors: dict[bytes, int] = {}
        self._open = _Open(self._opened)  # SQLite keeps its address
        self.works = self._install()
        """Whether SQLite took it: a build may hide its symbols."""

    def _install(self) -> bool:
        try:
            import _sqlite3

            library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
            library.sqlite3_vfs_find.restype = ctypes.c_void_p
            address = library.sqlite3_vfs_find(None)
            vfs = _Vfs.from_address(address)
            ours = ctypes.cast(self._open, ctypes.c_void_p)
            return vfs.iVersion >= 3 and not _SetSystemCall(vfs.xSetSystemCall)(
                address, b"open", ours
            )
        except (AttributeError, ImportError, OSError):
            return False

    def _opened(self, path: bytes, flags: int, mode: int) -> int:
        try:
            descriptor = self.descriptors.get(path)
            if descriptor is not None:
                return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
            return os.open(path, flags, mode)
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
