"""The folder in which the hub's own library has a model, which it downloads unless it is offline."""
from huggingface_hub import snapshot_download

from question import answer

answer(lambda name: snapshot_download(name))
