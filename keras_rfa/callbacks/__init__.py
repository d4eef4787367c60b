"""Callbacks for `fit`."""

from keras_rfa.callbacks.backup_and_resume import (
    BackupAndResume as BackupAndResume,
)
