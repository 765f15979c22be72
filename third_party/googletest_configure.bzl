"""Makes @googletest out of the sources that Debian and Ubuntu install (package googletest)."""

_BUILD = """\
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "gtest",
    srcs = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc"],
    hdrs = glob(["googletest/include/**/*.h", "googlemock/include/**/*.h"]),
    includes = ["googletest", "googletest/include", "googlemock", "googlemock/include"],
    linkopts = ["-pthread"],
    linkstatic = True,
    textual_hdrs = glob([
        "googletest/src/*.cc",
        "googletest/src/*.h",
        "googlemock/src/*.cc",
    ]),
)

cc_library(
    name = "gtest_main",
    srcs = ["googlemock/src/gmock_main.cc"],
    linkstatic = True,
    deps = [":gtest"],
)
"""

def _googletest_configure_impl(repository_ctx):
    folder = repository_ctx.os.environ.get("GTEST_SOURCE", "/usr/src/googletest")
    if not repository_ctx.path(folder + "/googletest/src/gtest-all.cc").exists:
        fail(("No googletest sources in {}: install them (apt-get install googletest), or set " +
              "GTEST_SOURCE to a checkout of googletest.").format(folder))
    for name in ["googletest", "googlemock"]:
        repository_ctx.symlink(folder + "/" + name, name)
    repository_ctx.file("BUILD", _BUILD)

googletest_configure = repository_rule(
    implementation = _googletest_configure_impl,
    configure = True,
    doc = "Symlinks the machine's googletest sources.",
    environ = ["GTEST_SOURCE"],
    local = True,
)
