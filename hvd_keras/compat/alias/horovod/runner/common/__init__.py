"""Parts of Horovod's runner that scripts import."""
