# Read by CMake as a toolchain file (.cargo/config.toml), because the solver's build script offers no other way in.
# It names no system, so that CMake does not take the build for one of another machine.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
