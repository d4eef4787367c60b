"""Callbacks for `fit`."""

from keras_rfa.callbacks.backup_and_resume import (
    BackupAndResume as BackupAndResume,
)
from keras_rfa.callbacks.reset_states import ResetStates as ResetStates
