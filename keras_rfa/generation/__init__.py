"""From prompts to sequences, a token at a time."""

from keras_rfa.generation.generate import generate as generate
from keras_rfa.generation.generate import stream as stream
from keras_rfa.generation.samplers import Temperature as Temperature
from keras_rfa.generation.state_file import load_state as load_state
from keras_rfa.generation.state_file import save_state as save_state
