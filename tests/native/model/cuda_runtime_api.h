// SPDX-License-Identifier: Apache-2.0
// What the kernels need of the CUDA runtime to be compiled for the model.
#ifndef DMI_MODEL_CUDA_RUNTIME_API_H_
#define DMI_MODEL_CUDA_RUNTIME_API_H_

enum cudaError_t { cudaSuccess };
struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct cudaFuncAttributes {};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return cudaSuccess;
}

#endif  // DMI_MODEL_CUDA_RUNTIME_API_H_
