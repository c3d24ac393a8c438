# SPDX-License-Identifier: Apache-2.0
# Generated from the built module: cmake --build BUILD --target native_stub
