# SPDX-License-Identifier: Apache-2.0
# Decides whether the CUDA operations are built, and says why where not.
#
# Defines the library dmi_cuda where they are: the kernels, the runtime they are
# launched with, and DMI_CUDA=1 for whoever links it. DMI_CUDA_WHY_NOT is empty
# exactly then.
if(NOT DMI_CUDA MATCHES "^(AUTO|ON|OFF|FAKE)$")
  message(FATAL_ERROR "DMI_CUDA=${DMI_CUDA} is none of AUTO, ON, OFF and FAKE")
endif()

# Sets CUDACXX to the nvcc of the user's choice, of the machine, or of the
# packages nvidia-cuda-nvcc, -crt, -runtime and nvidia-nvvm, in this order; with
# JAX_DMI_CUDA=pypi, for which pyproject.toml brings those packages, of these only.
function(dmi_find_nvcc)
  if(DEFINED ENV{CUDACXX} OR DEFINED CMAKE_CUDA_COMPILER)
    return()
  endif()
  if(NOT "$ENV{JAX_DMI_CUDA}" STREQUAL "pypi")
    find_program(DMI_NVCC nvcc
      HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
      PATHS /usr/local/cuda)
  endif()
  if(NOT DMI_NVCC AND Python_EXECUTABLE)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
        "import glob, importlib.util as u; s = u.find_spec('nvidia'); print(*(f for p in (s.submodule_search_locations if s else ()) for f in sorted(glob.glob(p + '/cu*'))), sep=';')"
      OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE toolkits
      COMMAND_ERROR_IS_FATAL ANY)
    find_program(DMI_NVCC nvcc
      PATHS ${toolkits} PATH_SUFFIXES bin NO_DEFAULT_PATH)
    if(DMI_NVCC)
      # Packages keep libraries in lib, their nvcc looks in lib64.
      cmake_path(GET DMI_NVCC PARENT_PATH bin)
      cmake_path(GET bin PARENT_PATH toolkit)
      set(ENV{CUDAFLAGS} "$ENV{CUDAFLAGS} -L${toolkit}/lib")
    endif()
  endif()
  if(DMI_NVCC)
    set(ENV{CUDACXX} ${DMI_NVCC})
  endif()
endfunction()

set(DMI_CUDA_WHY_NOT "")
set(DMI_CUDA_HANDLERS "")
if(DMI_CUDA STREQUAL "FAKE")
  # For tests: the kernels run on threads of the host.
  add_subdirectory(${PROJECT_SOURCE_DIR}/tests/native/fake_cuda fake_cuda)
  if(NOT TARGET dmi_fake_cuda)
    message(FATAL_ERROR "DMI_CUDA=FAKE needs cuda_runtime_api.h of a toolkit")
  endif()
  set_source_files_properties(ffi/program/kernels.cu PROPERTIES
    LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  target_sources(dmi_core PRIVATE ffi/program/kernels.cu)
  target_link_libraries(dmi_core PUBLIC dmi_fake_cuda)
  target_compile_definitions(dmi_core PUBLIC DMI_CUDA=1 DMI_CUDA_EMULATED=1)
  set(DMI_CUDA_HANDLERS
    ffi/handlers/cuda.cc ffi/handlers/cuda_upload.cc
    tests/native/fake_cuda/handlers.cc)
  set(DMI_CUDA_WHY_NOT "kernels are emulated")
elseif(DMI_CUDA STREQUAL "OFF")
  set(DMI_CUDA_WHY_NOT "switched off by DMI_CUDA=OFF when this was built")
else()
  dmi_find_nvcc()
  # Machine code for the devices that are supported, and what the driver of a
  # later one compiles.
  set(DMI_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING
    "Architectures, as in CMAKE_CUDA_ARCHITECTURES")
  set(CMAKE_CUDA_ARCHITECTURES ${DMI_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
      set(DMI_CUDA_WHY_NOT
        "nvcc ${CMAKE_CUDA_COMPILER_VERSION} was found when this was built, and 12 is needed")
    endif()
  elseif(DMI_NVCC)
    set(DMI_CUDA_WHY_NOT
      "nvcc was found when this was built, but compiles nothing")
  else()
    set(DMI_CUDA_WHY_NOT "no nvcc was found when this was built")
  endif()
endif()
if(NOT DMI_CUDA_WHY_NOT OR DMI_CUDA STREQUAL "FAKE")
  target_sources(dmi_core PRIVATE
    ffi/base/cuda.cc
    ffi/program/device_table.cc
    ffi/replay/cuda_upload.cc
    ffi/ring/clock_fit.cc
    ffi/ring/cuda_control.cc
    ffi/ring/cuda_ring.cc
    ffi/transfer/cuda_link.cc
    ffi/transfer/cuda_rate.cc)
endif()
if(DMI_CUDA_WHY_NOT AND DMI_CUDA STREQUAL "ON")
  message(FATAL_ERROR "DMI_CUDA=ON, but ${DMI_CUDA_WHY_NOT}")
elseif(DMI_CUDA_WHY_NOT)
  message(STATUS "CUDA: no, ${DMI_CUDA_WHY_NOT}")
  return()
endif()
message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION} "
  "for ${CMAKE_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# CMake 3.25 does not know that nvcc 12 compiles C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# Static: the module has to import where no CUDA is installed.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

add_library(dmi_cuda STATIC ffi/program/kernels.cu)
target_link_libraries(dmi_cuda PUBLIC dmi_options)
target_compile_definitions(dmi_cuda PUBLIC DMI_CUDA=1)
target_include_directories(dmi_cuda SYSTEM PUBLIC
  ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
# A spill is an error. Not compressed, so that what a module holds can be read.
target_compile_options(dmi_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
  -Werror=all-warnings --resource-usage --no-compress
  -Xptxas=-warn-spills,-warn-lmem-usage
  -Xcompiler=-Wall,-Wextra,-Werror>)
target_link_libraries(dmi_core PUBLIC dmi_cuda)
set(DMI_CUDA_HANDLERS ffi/handlers/cuda.cc ffi/handlers/cuda_upload.cc)
