# shellcheck shell=bash
# Options of the sanitizers, for unit and end-to-end tests; sourced, from the top of the repository.
# They do nothing in a normal build. What is set outside comes last and wins.
export ASAN_OPTIONS="abort_on_error=1:allocator_may_return_null=1:detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
if [ -n "${SANITIZE:-}" ]; then
    # UCX patches malloc and mmap while it starts; ThreadSanitizer has patched them already, and a
    # thread that ends would crash between the two.
    export UCX_MEM_MMAP_HOOK_MODE=none UCX_MEM_EVENTS=no
fi
