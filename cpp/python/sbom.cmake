# The bill of materials that a wheel brings (PEP 770: .dist-info/sboms), in CycloneDX: what of others
# is compiled into it. The runtime has nothing; the Python module has pybind11's headers, and on macOS
# the metal device metal-cpp's. What pip installs beside it stands in the wheel's METADATA.
set(sbom_components "")
set(sbom_references "")
macro(npusim_contains name version license purl)
  list(APPEND sbom_references "\"${name}\"")
  string(CONCAT component "\n    {\"type\": \"library\", \"bom-ref\": \"${name}\", "
         "\"name\": \"${name}\", \"version\": \"${version}\", \"purl\": \"${purl}@${version}\", "
         "\"licenses\": [{\"license\": {\"id\": \"${license}\"}}]}")
  list(APPEND sbom_components "${component}")
endmacro()

npusim_contains(pybind11 "${pybind11_VERSION}" BSD-3-Clause "pkg:pypi/pybind11")
if(APPLE AND TARGET npusim_metal)
  set(metal_cpp_version "${NPUSIM_METAL_CPP_VERSION}")
  if(NOT metal_cpp_version)
    set(metal_cpp_version unspecified)  # a folder that was given
  endif()
  npusim_contains(metal-cpp "${metal_cpp_version}" Apache-2.0 "pkg:generic/metal-cpp")
endif()
list(JOIN sbom_components "," sbom_components)
list(JOIN sbom_references ", " sbom_references)
configure_file(${CMAKE_CURRENT_LIST_DIR}/npusim.cdx.json.in npusim.cdx.json @ONLY)
if(SKBUILD_METADATA_DIR)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/npusim.cdx.json
          DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
endif()
