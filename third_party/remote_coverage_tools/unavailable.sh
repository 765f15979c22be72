#!/bin/sh
echo "bazel coverage is not available in this workspace" >&2
exit 1
